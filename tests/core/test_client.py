"""What a client sees and measures: its data, its state, its models."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equipoise.client import Client, ClientState, Inputs
from equipoise.data.samples import EVALUATION_BATCH
from equipoise.losses.terms import Batch, frozen_features, supervised, term
from equipoise.models import Outputs
from equipoise.models.network import frozen
from equipoise.streams import number, torch_stream
from equipoise.training.workbench import Workbench
from equipoise.tree import Tree
from tests.helpers.plain import assert_equal, assert_near
from tests.helpers.problems import bench_of
from tests.helpers.runs import settings, sites


def bench(model: str = "mlp", size: int = 24, **changes: object) -> Workbench:
    return bench_of(settings("fedavg", model, **changes), sites({"ada": size, "bo": 13}))[0]


def test_data_are_the_clients_own_and_training_is_apart_from_validation() -> None:
    shop = bench()
    ada, bo = Client(shop, "ada", 1, 1, {}), Client(shop, "bo", 1, 1, {})
    parts = [
        set(samples.index.tolist())
        for samples in (ada.train, ada.validation, bo.train, bo.validation)
    ]
    assert all(parts) and sum(map(len, parts)) == len(set.union(*parts))
    assert torch.equal(ada.train.x, shop.federation.x[ada.train.index]) and len(ada.train.y) == len(
        ada.train
    )


def test_measurements_are_in_evaluation_mode_and_in_order() -> None:
    """More samples than one evaluation batch, and a batch norm that would show a wrong mode."""
    client = Client(bench("cnn", size=400), "ada", 1, 1, {})
    model = client.load(None)
    client.fit(model)
    before = model.tree()
    logits = client.predict(model)
    assert len(client.train) > EVALUATION_BATCH
    model.net.eval()
    torch.testing.assert_close(logits, model.net(client.train.x).detach())
    assert client.features(model).shape == (len(client.train), 64)
    assert client.loss(model) == pytest.approx(float(F.cross_entropy(logits, client.train.y)))
    assert len(client.predict(model, client.validation)) == len(client.validation)
    assert_equal(before, model.tree())


def test_the_gradient_is_that_of_the_mean_loss_over_all_samples() -> None:
    client = Client(bench("cnn"), "ada", 1, 1, {})
    model = client.load(None)
    found = client.gradient(model)
    F.cross_entropy(model.net.eval()(client.train.x), client.train.y).backward()
    assert_near(
        found, {name: parameter.grad for name, parameter in model.net.named_parameters()}, 1e-5
    )


def test_inputs_of_a_method_are_seen_by_everything_but_the_raw_data() -> None:
    client = Client(bench(), "ada", 1, 1, {})
    raw = client.train.x.clone()
    client.inputs = Inputs(train=lambda x, noise: x + 100, other=lambda x: 0 * x, random=False)
    model = client.load(None)
    assert torch.equal(client.train.x, raw)
    flat = model.net.eval()(torch.zeros(1, 1, 8, 8)).detach()
    torch.testing.assert_close(client.predict(model), flat.expand(len(client.train), -1))
    assert client.loss(model) == pytest.approx(
        float(F.cross_entropy(flat.expand(len(raw), -1), client.train.y))
    )
    assert all(not batch.x.any() for batch in client.batches())
    seen: list[torch.Tensor] = []
    client.fit(
        model,
        supervised + term(lambda outputs, batch: seen.append(batch.x) or outputs.logits.sum() * 0),
    )
    assert min(float(x.min()) for x in seen) > 50


def test_a_teacher_is_cached_only_where_inputs_are_fixed() -> None:
    client = Client(bench(), "ada", 1, 1, {})
    model = client.load(None)
    assert torch.equal(client.teacher(model), client.predict(model))
    client.inputs = Inputs(train=lambda x, noise: x, other=lambda x: x)
    assert client.teacher(model) is model
    assert Client(
        bench(data={"augment": ["flip"], "partition": "natural"}), "ada", 1, 1, {}
    ).random_inputs


@pytest.mark.parametrize("random", [False, True])
def test_frozen_features_are_those_of_evaluation_and_change_nothing(random: bool) -> None:
    client = Client(bench("cnn"), "ada", 1, 1, {})
    teacher, student = client.load(None), client.load(None)
    client.inputs = Inputs(train=lambda x, noise: x, other=lambda x: x, random=random)
    wanted, before = client.features(teacher).flatten(1), teacher.tree()
    given = client.feature_teacher(teacher)
    assert (given is teacher) == random
    teacher.net.train()
    teacher.net.features[1].eval()
    gaps: list[float] = []

    def gap(outputs: Outputs, batch: Batch) -> torch.Tensor:
        found = frozen_features(given, batch)
        assert found.shape == (len(batch.y), 64) and not found.requires_grad
        gaps.append(float((found - wanted[batch.indices]).abs().max()))
        return outputs.logits.sum() * 0

    client.fit(student, supervised + term(gap))
    assert gaps and max(gaps) < 1e-5
    assert_equal(before, teacher.tree())
    assert teacher.net.training and not teacher.net.features[1].training, (
        "every part is in the mode it was in"
    )


def test_frozen_weights_pass_a_gradient_on_and_get_none() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    net[2].bias.requires_grad_(False)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    with frozen(net):
        loss = net(x).square().sum()
    loss.backward()
    assert x.grad is not None and x.grad.any()
    assert all(parameter.grad is None for parameter in net.parameters())
    assert [parameter.requires_grad for parameter in net.parameters()] == [True] * 5 + [False], (
        "what was frozen before stays so"
    )
    with pytest.raises(RuntimeError, match="inside"), frozen(net):
        raise RuntimeError("inside")
    assert net[0].weight.requires_grad


def test_batches_are_the_training_data_in_order() -> None:
    client = Client(bench(), "ada", 1, 1, {})
    batches = list(client.batches(7))
    assert torch.equal(torch.cat([batch.x for batch in batches]), client.train.x)
    assert torch.cat([batch.indices for batch in batches]).tolist() == list(
        range(len(client.train))
    )
    assert [len(batch.y) for batch in batches][:-1] == [7] * (len(batches) - 1)
    assert torch.equal(torch.cat([batch.y for batch in batches]), client.train.y)
    assert [(batch.position, batch.step, batch.epoch) for batch in batches] == [
        (place, place, 0) for place in range(len(batches))
    ]
    assert len(next(client.batches()).y) == client.training.batch == 5


def test_state_is_plain_and_notes_changes() -> None:
    client = Client(bench(), "ada", 1, 1, {"old": 1})
    assert client.state["old"] == 1 and not client.state.changed
    client.state["model"] = client.load(None)
    assert isinstance(client.state["model"], Tree) and client.state.changed
    with pytest.raises(TypeError, match=r"client.state\['x'\]: expected a tree"):
        client.state["x"] = object()
    del client.state["old"]
    assert set(client.state) == {"model"}


def test_a_guest_works_on_its_own_branch_of_the_state() -> None:
    client = Client(bench(), "ada", 1, 1, {"mine": 1, "@guest": {"mine": 2}})
    with client.guest_state("@guest"):
        assert dict(client.state) == {"mine": 2}
        client.state["mine"] = 3
    assert dict(client.state) == {"mine": 1, "@guest": {"mine": 3}}
    with client.guest_state("@reader"):
        assert not client.state
    assert "@reader" not in client.state


def test_models_are_lent_apart_and_come_back_as_they_were() -> None:
    shop = bench()
    client = Client(shop, "ada", 1, 1, {})
    with shop.lending():
        first, second = client.load(None), client.load(None)
        client.fit(first)
        assert_equal(second.tree(), shop.initial("model"))
    with shop.lending():
        for again in (client.load(None), client.load(None)):
            assert again in (first, second)
            assert_equal(again.tree(), shop.initial("model"))
            assert all(parameter.grad is None for parameter in again.net.parameters())


def test_the_initial_model_follows_from_seed_and_architecture_alone() -> None:
    torch.manual_seed(1)
    first = bench().initial("model")
    torch.manual_seed(2)
    assert_equal(first, bench().initial("model"))
    assert_equal(first, bench().initial("private"))
    assert not torch.equal(first["head.weight"], bench(seed=8).initial("model")["head.weight"])


def test_wrong_trees_and_names_are_refused_with_what_differs() -> None:
    client = Client(bench(), "ada", 1, 1, {})
    tree = client.initial("model")
    short = Tree({name: value for name, value in tree.items() if name != "head.bias"})
    with pytest.raises(ValueError, match=r"missing \['head.bias'\], unknown none"):
        client.load(short)
    wide = Tree({**tree, "head.bias": torch.zeros(9)})
    with pytest.raises(ValueError, match=r"head.bias: expected shape \(3,\), got \(9,\)"):
        client.load(wide)
    with pytest.raises(KeyError, match="no model 'teacher': this experiment has"):
        client.load(None, model="teacher")


def test_a_process_without_data_says_so() -> None:
    shop = bench()
    shop.federation = None
    with pytest.raises(RuntimeError, match="client ada: expected train data"):
        _ = Client(shop, "ada", 1, 1, {}).train


def test_a_model_of_the_users_that_holds_frozen_weights_never_moves_them() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Linear(4, 3))
    net[1].weight.requires_grad_(False)
    client = Client(bench(models={"model": net}), "ada", 1, 1, {})
    model = client.load(None)
    client.fit(model)
    start, tree = client.initial("model"), model.tree()
    assert tree.untrained == {"features.1.weight"}
    assert torch.equal(tree["features.1.weight"], start["features.1.weight"])
    assert not torch.equal(tree["features.2.weight"], start["features.2.weight"])


def test_rounds_after_the_last_train_as_the_last_and_the_setup_as_the_first() -> None:
    shop = bench(training={"lr": 0.8, "lr_decay": 0.5})
    assert [Client(shop, "ada", number, 3, {}).lr for number in (0, 1, 2, 3, 4, 9)] == [
        0.8,
        0.8,
        0.4,
        0.2,
        0.2,
        0.2,
    ]
    client = Client(shop, "ada", 2, 3, {})
    assert (client.steps, client.skipped, client.attempt, client.device, client.inputs) == (
        0,
        0,
        0,
        "cpu",
        None,
    )


def test_validation_data_are_trained_on_within_a_block_only() -> None:
    client = Client(bench(), "ada", 1, 1, {})
    own, judged = client.train.index.tolist(), client.validation.index.tolist()
    with client.training_on_all():
        assert (
            client.train.index.tolist() == own + judged
            and client.validation.index.tolist() == judged
        )
        assert torch.equal(client.train.x[len(own) :], client.validation.x)
    assert client.train.index.tolist() == own
    with pytest.raises(ZeroDivisionError), client.training_on_all():
        raise ZeroDivisionError
    assert client.train.index.tolist() == own


def test_random_numbers_are_named_by_round_attempt_client_and_purpose() -> None:
    shop = bench()
    client, again = Client(shop, "ada", 2, 3, {}), Client(shop, "ada", 2, 3, {}, attempt=1)
    assert client.seed("noise") == number(7, "client", 2, "ada", "noise")
    assert again.seed("noise") == number(7, "client", 2, "attempt 1", "ada", "noise")
    assert torch.equal(
        client.stream("noise").get_state(), torch_stream(7, "client", 2, "ada", "noise").get_state()
    )
    common = [
        one.common_stream("basis", 3).get_state()
        for one in (client, again, Client(shop, "bo", 1, 3, {}))
    ]
    assert all(torch.equal(one, torch_stream(7, "basis", 3).get_state()) for one in common)


def test_a_branch_that_fails_leaves_the_state_as_it_was_and_a_guest_may_see_the_whole() -> None:
    client = Client(bench(), "ada", 1, 1, {"mine": 1})
    with pytest.raises(ZeroDivisionError), client.guest_state("@guest"):
        client.state["mine"] = 5
        raise ZeroDivisionError
    assert dict(client.state) == {"mine": 1} and not client.state.changed
    with client.guest_state("@guest"):
        with client.host_state():
            assert dict(client.state) == {"mine": 1}
            client.state["more"] = 2
        assert dict(client.state) == {} and not client.state.changed
        client.state["mine"] = 5
    assert dict(client.state) == {"mine": 1, "more": 2, "@guest": {"mine": 5}}
    with pytest.raises(ZeroDivisionError), client.guest_state("@guest"):
        branch = client.state
        with client.host_state():
            raise ZeroDivisionError
    assert branch.whole is client.state and client.state.whole is client.state


def test_a_state_notes_what_was_deleted() -> None:
    state = ClientState({"a": 1, "b": 2})
    assert not state.changed and len(state) == 2
    del state["a"]
    assert state.changed and dict(state) == {"b": 2}
    with pytest.raises(KeyError):
        ClientState({})["a"]


def test_a_gradient_forgets_what_was_there_and_leaves_nothing() -> None:
    client = Client(bench(), "ada", 1, 1, {})
    model = client.load(None)
    clean = client.gradient(model)
    for parameter in model.net.parameters():
        parameter.grad = torch.ones_like(parameter)
    model.net.train()
    assert_equal(clean, client.gradient(model))
    assert (
        all(parameter.grad is None for parameter in model.net.parameters())
        and not model.net.training
    )
    assert clean.model == "model" and clean.untrained == frozenset()


def test_a_weight_that_the_loss_does_not_reach_has_a_gradient_of_zero() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    net.register_parameter("unused", nn.Parameter(torch.ones(2)))
    client = Client(bench(models={"model": net}), "ada", 1, 1, {})
    found = client.gradient(client.load(None))
    assert found["features.unused"].tolist() == [0, 0] and found["features.1.weight"].any()


def test_augmentation_is_of_training_inputs_only_and_comes_before_those_of_the_method() -> None:
    client = Client(
        bench(data={"augment": ["flip"], "partition": "natural", "split": (0.7, 0.15, 0.15)}),
        "ada",
        1,
        1,
        {},
    )
    x, noise = client.train.x, torch.Generator()
    flipped = client._training_inputs(x, noise.manual_seed(0))
    assert not torch.equal(flipped, x)
    assert all(
        torch.equal(one, two) or torch.equal(one, two.flip(-1))
        for one, two in zip(flipped, x, strict=True)
    )
    client.inputs = Inputs(train=lambda x, noise: x + 1, other=lambda x: x, random=False)
    assert torch.equal(client._training_inputs(x, noise.manual_seed(0)), flipped + 1)
    assert client.random_inputs, "also where the method's own are not"
    assert torch.equal(next(client.batches(3)).x, x[:3])


@pytest.mark.parametrize(("inputs", "random"), [(None, False), (Inputs(lambda x, noise: x, lambda x: x, False), False), (Inputs(lambda x, noise: x, lambda x: x), True)])  # fmt: skip
def test_inputs_are_random_unless_said_otherwise(inputs: Inputs | None, random: bool) -> None:
    client = Client(bench(), "ada", 1, 1, {})
    client.inputs = inputs
    assert client.random_inputs is random


def test_measurements_on_other_samples_and_through_the_methods_inputs() -> None:
    client = Client(bench("cnn"), "ada", 1, 1, {})
    model = client.load(None)
    client.inputs = Inputs(train=lambda x, noise: x, other=lambda x: 2 * x)
    with torch.no_grad():
        net = model.net.eval()
        torch.testing.assert_close(
            client.features(model, client.validation), net.features(2 * client.validation.x)
        )
        torch.testing.assert_close(client.features(model), net.features(2 * client.train.x))
        torch.testing.assert_close(
            client.predict(model, client.validation), net(2 * client.validation.x)
        )


def test_without_samples_there_is_no_loss() -> None:
    client = Client(bench(), "ada", 1, 1, {})
    client._own["train"] = client.train.some(torch.arange(0))
    assert client.loss(client.load(None)) == 0.0


def test_the_parts_of_the_data() -> None:
    shop = bench(data={"split": (0.6, 0.15, 0.25), "partition": "natural", "test": "global"})
    federation = shop.federation
    assert shop.position == {"ada": 0, "bo": 1} and len(federation.shared_test)
    for client in ("ada", "bo"):
        assert shop.part(client, "shared").index.tolist() == federation.shared_test.tolist()
        assert (
            shop.part(client, "train").index.tolist()
            == federation.train[shop.position[client]].tolist()
        )
