"""The one training loop: which samples it visits, in which order, and what it leaves behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.client import Client, FitResult
from equipoise.losses.terms import Batch, Loss, supervised, term
from equipoise.models import Outputs
from equipoise.training.workbench import Workbench
from equipoise.tree import Tree
from tests.helpers.plain import assert_equal, assert_near
from tests.helpers.problems import bench_of
from tests.helpers.runs import settings, sites

NORMED = nn.Sequential(
    nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)
)  # cannot take a batch of one


def bench(model: Any = "mlp", size: int = 17, **training: Any) -> Workbench:
    """A workbench whose clients hold `size` training samples each."""
    changes = {} if isinstance(model, str) else {"models": {"model": model}}
    name = model if isinstance(model, str) else "mlp"
    config = settings(
        "fedavg",
        name,
        data={"split": (1.0, 0.0, 0.0), "partition": "natural"},
        training={"batch": 5, **training},
        **changes,
    )
    return bench_of(config, sites({"ada": size, "bo": size}))[0]


def worker(on: Workbench, id: str = "ada", round: int = 1, attempt: int = 0) -> Client:
    return Client(on, id, round, 9, {}, attempt)


def watched(seen: list[Batch]) -> Loss:
    def value(outputs: Outputs, batch: Batch) -> Tensor:
        seen.append(batch)
        return batch.supervise(outputs.logits, batch.y)

    return term(value)


def order(client: Client, **options: Any) -> list[int]:
    """The places of the samples as one fit visits them."""
    seen: list[Batch] = []
    client.fit(client.load(None), watched(seen), **options)
    return torch.cat([batch.indices for batch in seen]).tolist()


def end(client: Client, **options: Any) -> tuple[Tree, FitResult]:
    """The tree after one fit from the initial model."""
    model = client.load(None)
    done = client.fit(model, **options)
    return model.tree(), done


def test_an_epoch_visits_every_sample_once_in_batches_with_a_short_last_one() -> None:
    client, seen = worker(bench()), []
    done = client.fit(client.load(None), watched(seen), epochs=2)
    assert [len(batch.indices) for batch in seen] == [5, 5, 5, 2] * 2
    assert [(batch.epoch, batch.step, batch.position) for batch in seen] == [
        (e, 4 * e + p, p) for e in (0, 1) for p in range(4)
    ]
    for epoch in (seen[:4], seen[4:]):
        assert sorted(torch.cat([batch.indices for batch in epoch]).tolist()) == list(range(17))
    assert (done.steps, done.skipped, client.steps) == (8, 0, 8)
    for batch in seen:
        assert torch.equal(batch.x, client.train.x[batch.indices]) and torch.equal(
            batch.y, client.train.y[batch.indices]
        )


def test_steps_stand_in_place_of_epochs() -> None:
    client, seen = worker(bench()), []
    assert client.fit(client.load(None), watched(seen), steps=6).steps == 6
    assert [batch.epoch for batch in seen] == [0, 0, 0, 0, 1, 1]
    by_steps = worker(bench(steps=3))
    assert end(by_steps)[1].steps == 3
    assert end(by_steps, epochs=2)[1].steps == 8


def test_the_batch_order_is_named_by_seed_round_client_attempt_and_purpose() -> None:
    shop = bench()
    first = order(worker(shop))
    assert order(worker(shop)) == first
    assert order(worker(shop, attempt=0)) == first
    others = [worker(shop, "bo"), worker(shop, round=2), worker(shop, attempt=1)]
    orders = [first, order(worker(shop), purpose="forward"), *map(order, others)]
    assert len({tuple(one) for one in orders}) == 5
    both = worker(shop)
    assert order(both) == order(both) == first, (
        "two stages of a round share the order of one purpose"
    )


@pytest.mark.parametrize("as_places", [False, True])
def test_a_subset_is_all_that_is_seen(as_places: bool) -> None:
    client = worker(bench())
    mask = torch.arange(17) % 3 == 0
    assert sorted(order(client, on=mask.nonzero().squeeze(1) if as_places else mask)) == [
        0,
        3,
        6,
        9,
        12,
        15,
    ]


def test_an_empty_subset_changes_nothing() -> None:
    client = worker(bench())
    tree, done = end(client, on=torch.zeros(17, dtype=torch.bool), epochs=3)
    assert (done.steps, done.loss, done.skipped) == (0, 0.0, 0)
    assert_equal(tree, client.initial("model"))


def test_a_batch_of_one_that_batch_norm_cannot_take_is_skipped_and_counted() -> None:
    client = worker(bench(NORMED, size=11))
    _, done = end(client, epochs=2)
    assert (done.steps, done.skipped, client.skipped) == (4, 2, 2)
    assert end(worker(bench("cnn", size=11)))[1].steps == 3, (
        "a convolution's batch norm takes a single sample"
    )


def test_training_ends_when_every_batch_is_skipped() -> None:
    client = worker(bench(NORMED, size=1))
    tree, done = end(client, steps=1000)
    assert (done.steps, done.skipped) == (0, 1)
    assert_equal(tree, client.initial("model"))


def test_several_models_step_on_the_same_batches_each_with_its_own_loss() -> None:
    shop, seen = bench(), []
    client = worker(shop)
    doubled = term(lambda outputs, batch: 2 * batch.supervise(outputs.logits, batch.y))
    first, second = client.load(None), client.load(None)
    done = client.fit([first, second], [watched(seen), doubled])
    assert done.steps == 4 and first is not second
    assert_near(first.tree(), dict(end(worker(shop))[0]))
    assert_near(second.tree(), dict(end(worker(shop), loss=doubled)[0]))
    assert not torch.equal(first.tree()["head.weight"], second.tree()["head.weight"])


def test_models_on_one_batch_see_each_others_outputs_and_detached_ones_carry_no_gradient() -> None:
    client = worker(bench())
    first, second = client.load(None), client.load(None)

    def towards_first(outputs: Outputs, batch: Batch) -> Tensor:
        assert outputs.peers[0].model is first and outputs.peers[1] is outputs
        return F.mse_loss(outputs.logits, outputs.peers[0].logits.detach() + 1)

    client.fit([first, second], [0 * supervised, term(towards_first)])
    assert_equal(first.tree(), client.initial("model"))
    assert not torch.equal(second.tree()["head.weight"], client.initial("model")["head.weight"])


@pytest.mark.parametrize("models", [1, 2])
def test_optimiser_memory_is_given_and_returned(models: int) -> None:
    """Two fits of four steps with memory are the eight steps of torch's optimiser over the same
    batches.
    """
    client = worker(bench(momentum=0.9, lr=0.05))
    nets = [client.load(None) for _ in range(models)]
    reference = client.load(None)
    optimiser = torch.optim.SGD(reference.net.parameters(), lr=0.05, momentum=0.9)
    memory = None
    for _ in range(2):
        seen: list[Batch] = []
        memory = client.fit(
            nets if models > 1 else nets[0],
            [watched(seen), *[supervised] * (models - 1)],
            memory=memory,
        ).memory
        for batch in seen:
            optimiser.zero_grad()
            F.cross_entropy(reference.net(batch.x), batch.y).backward()
            optimiser.step()
    for net in nets:
        assert_near(net.tree(), dict(reference.tree()), 1e-5)


def test_the_gradient_hook_replaces_each_gradient_by_name() -> None:
    client = worker(bench())
    names: set[str] = set()

    def only_head(name: str, gradient: Tensor) -> Tensor:
        names.add(name)
        return gradient if name.startswith("head") else torch.zeros_like(gradient)

    tree, start = end(client, gradient=only_head)[0], client.initial("model")
    assert names == set(start.trained)
    moved = {name for name in start if not torch.equal(tree[name], start[name])}
    assert moved == {"head.weight", "head.bias"}


def test_clipping_bounds_a_step() -> None:
    client = worker(bench())
    tree, _ = end(client, steps=1, clip=0.01, lr=1.0)
    assert (tree - client.initial("model")).norm() == pytest.approx(0.01, rel=1e-3)


def test_the_learning_rate_decays_by_round_and_can_be_overridden() -> None:
    shop = bench(lr=0.4, lr_decay=0.5, batch=100)
    start = shop.initial("model")
    moves = [(end(worker(shop, round=number))[0] - start).norm() for number in (1, 2, 3)]
    assert moves == pytest.approx([moves[0], moves[0] / 2, moves[0] / 4], rel=1e-3)
    assert (end(worker(shop, round=3), lr=0.4)[0] - start).norm() == pytest.approx(
        moves[0], rel=1e-3
    )


def test_the_loss_is_the_mean_over_samples() -> None:
    client = worker(bench(lr=1e-12))
    _, done = end(client)
    assert done.loss == pytest.approx(client.loss(client.load(None)), rel=1e-5)


def test_dropout_draws_from_a_named_stream_and_leaves_the_users_generator_alone() -> None:
    shop = bench(nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3)))
    before = torch.random.get_rng_state()
    first = end(worker(shop))[0]
    torch.rand(3)
    assert_equal(first, end(worker(shop))[0])
    assert not torch.equal(
        first["features.2.weight"], end(worker(shop, "bo"))[0]["features.2.weight"]
    )
    torch.random.set_rng_state(before)
    end(worker(shop))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_misspelt_setting_is_refused() -> None:
    with pytest.raises(TypeError, match="unknown training setting 'epoch'"):
        end(worker(bench()), epoch=3)


def test_a_fit_adds_to_what_the_request_has_done() -> None:
    client = worker(bench(NORMED, size=11))
    first, second = end(client)[1], end(client, epochs=2)[1]
    assert (first.steps, second.steps, client.steps) == (2, 4, 6) and (
        first.skipped,
        second.skipped,
        client.skipped,
    ) == (1, 2, 3)


@pytest.mark.parametrize("steps", [1, 4, 5, 8])
def test_as_many_steps_as_asked_for_also_at_the_end_of_an_epoch(steps: int) -> None:
    seen: list[Batch] = []
    client = worker(bench())
    assert client.fit(client.load(None), watched(seen), steps=steps).steps == len(seen) == steps
    assert [(batch.epoch, batch.position) for batch in seen] == [
        divmod(step, 4) for step in range(steps)
    ]


def test_the_loss_of_one_sample_is_its_own() -> None:
    client = worker(bench(lr=1e-12))
    _, done = end(client, on=torch.tensor([3]))
    model = client.load(None)
    wanted = F.cross_entropy(model.net(client.train.x[3:4]), client.train.y[3:4]).item()
    assert done.loss == pytest.approx(wanted, rel=1e-5) and done.steps == 1


def test_the_loss_that_is_told_is_that_of_the_first_model() -> None:
    client = worker(bench(lr=1e-12))
    alone = end(client)[1].loss
    for losses, factor in (([supervised, 3 * supervised], 1), ([3 * supervised, supervised], 3)):
        done = client.fit([client.load(None), client.load(None)], losses)
        assert done.loss == pytest.approx(factor * alone, rel=1e-5)


@pytest.mark.parametrize("losses", [1, 3])
def test_every_model_has_one_loss(losses: int) -> None:
    client = worker(bench())
    with pytest.raises(ValueError, match="zip"):
        client.fit([client.load(None), client.load(None)], [supervised] * losses)


def test_old_gradients_do_not_count_with_several_models() -> None:
    client = worker(bench())
    models = [client.load(None), client.load(None)]
    for model in models:
        for parameter in model.net.parameters():
            parameter.grad = torch.full_like(parameter, 100.0)
    client.fit(models, [supervised, supervised])
    for model in models:
        assert_near(model.tree(), dict(end(worker(bench()))[0]))


def test_half_precision_is_in_the_network_and_not_in_the_loss() -> None:
    dtypes: set[torch.dtype] = set()

    def look(outputs: Outputs, batch: Batch) -> Tensor:
        dtypes.update((outputs.features.dtype, outputs.logits.dtype))
        return outputs.logits.sum() * 0

    ends = {}
    for precision in ("float32", "bfloat16"):
        client = worker(bench(precision=precision))
        model = client.load(None)
        client.fit(model, supervised + term(look))
        ends[precision] = model.tree()
    assert dtypes == {torch.float32}
    assert not torch.equal(ends["float32"]["head.weight"], ends["bfloat16"]["head.weight"])
    assert_near(ends["bfloat16"], dict(ends["float32"]), 0.05)


def test_a_fit_trains_in_training_mode_and_noise_is_of_its_purpose() -> None:
    seen: list[Batch] = []
    client = worker(bench("cnn"))
    model = client.load(None)
    model.net.eval()
    client.fit(model, watched(seen), purpose="own")
    assert model.net.training
    assert (
        seen[0].noise is not None
        and seen[0].noise.initial_seed() == client.stream("own inputs").initial_seed()
    )


def test_dropout_of_several_models_is_that_of_each_alone() -> None:
    shop = bench(nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3)))
    alone = end(worker(shop))[0]
    client = worker(shop)
    models = [client.load(None), client.load(None)]
    client.fit(models, [supervised, supervised])
    for model in models:
        assert_near(model.tree(), dict(alone))
