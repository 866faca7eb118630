"""Poise: the properties that its specification promises, on real networks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import equipoise as eq
from equipoise import simulate
from equipoise.client import Client
from equipoise.composition import compose
from equipoise.data import Federation
from equipoise.method import Method, Ups
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedavgm import FedAvgM
from equipoise.methods.finetune import Finetune
from equipoise.methods.poise import Poise
from equipoise.methods.standalone import Standalone
from equipoise.records import Down, Up
from equipoise.runs import Run, read_result
from equipoise.runs.export import export
from equipoise.runs.notes import notes
from equipoise.weighting import (
    log_likelihoods,
    mixture_weights,
    on_simplex,
    posterior_mean,
    simplex_grid,
)
from tests.helpers.callbacks import Calling
from tests.helpers.counting import counted
from tests.helpers.digits import refused
from tests.helpers.images import NETWORKS, play, shared
from tests.helpers.plain import assert_equal
from tests.helpers.problems import bench_of, client_states, server_state
from tests.helpers.runs import (
    CLASSES,
    assert_same,
    everything,
    federation_changed,
    played,
    settings,
    sites,
)

END = 4  # the record of what follows three rounds
MANY = {"ada": 90, "bo": 80, "cy": 100, "di": 70}  # validation parts of ten and more
SKEW = {"ada": [0], "bo": [0, 1], "cy": [1, 2]}
# Held out in rounds 1 and 2 of three, and no step of the server or of L differs from FedAvg's.
PLAIN: dict[str, Any] = {"hold": 0.667, "momentum": 0.0, "spend": False}
SWITCHES = {
    "all": {},
    "no alone": {"alone": False},
    "no offsets": {"offsets": False},
    "no tuning": {"tune_epochs": 0},
    "global only": {"alone": False, "offsets": False, "tune_epochs": 0},
    "merit": {"merit": 1.0},
    "pooled": {"prior": "pooled"},
}


def skewed(**changes: Any) -> dict[str, Any]:
    return dict(sites(MANY, SKEW, **changes))


def ends(run: Run) -> dict[str, Any]:
    """What the clients remember at the end."""
    found = client_states(run, END + 5)
    assert set(found) == set(run.clients)
    return found


def prior_of(run: Run) -> np.ndarray:
    found: np.ndarray = server_state(run, END + 5).prior.numpy()
    return found


def values(run: Run, model: str, metric: str = "accuracy") -> dict[tuple[str, str], float]:
    return {
        (r["client"], r["split"]): r["value"]
        for r in run.table(phase="final", model=model, metric=metric)
    }


# 1. The two halves are what they would be without each other.


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("switches", SWITCHES)
def test_global_is_fedavg_and_alone_is_standalone_bit_for_bit(
    switches: str, network: str, tmp_path: Path
) -> None:
    run = play(Poise(**SWITCHES[switches], momentum=0, fold=False), tmp_path / "poise", network)
    assert_equal(shared(run), shared(play("fedavg", tmp_path / "fedavg", network)))
    alone = client_states(play("standalone", tmp_path / "alone", network))
    for client, own in client_states(run, 3).items():
        assert_equal(own["local"], alone[client]["local"])
        assert set(own) == {"local"}, "nothing is done for the end before it"
    if switches == "no alone":
        assert not client_states(run, 3) and set(run.models()) == {"personal", "global"}


@pytest.mark.parametrize("hold", [0.4, 1.0])
@pytest.mark.thorough
def test_before_clients_judge_the_models_are_those_of_fedavg_and_standalone(
    hold: float, tmp_path: Path
) -> None:
    held_out = {0.4: 1, 1.0: 3}[hold]
    run = play(Poise(**{**PLAIN, "hold": hold}), tmp_path / "poise", on=skewed())
    plain = play("fedavg", tmp_path / "fedavg", on=skewed())
    alone = play("standalone", tmp_path / "alone", on=skewed())
    assert_equal(shared(run, held_out), shared(plain, held_out))
    before, after = client_states(run, held_out), client_states(run, 3)
    for client, own in before.items():
        assert_equal(own["local"], client_states(alone, held_out)[client]["local"])
        assert set(own) == {"local"}, "nothing is done for the end before it"
        has_judged = {"judged", "likelihoods", "tuned", "offsets"} <= set(after[client])
        assert has_judged == (hold < 1)
    assert torch.equal(shared(run)["head.weight"], shared(plain)["head.weight"]) == (hold == 1)


@pytest.mark.thorough
def test_alone_keeps_its_optimiser_where_standalone_does(tmp_path: Path) -> None:
    training = {
        "optimiser": "adam",
        "lr": 0.01,
        "batch": 5,
        "epochs": 1,
        "keep_optimiser": True,
        "lr_decay": 0.9,
    }
    run, alone = (
        play(method, tmp_path / name, "cnn", training=training)
        for name, method in (("a", Poise(fold=False)), ("b", Standalone()))
    )
    for client, own in client_states(run, 3).items():
        assert_equal(own["local"], client_states(alone)[client]["local"])
    assert values(run, "alone", "loss") == values(alone, "personal", "loss")


@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_with_momentum_the_global_model_is_that_of_fedavgm_bit_for_bit(
    network: str, tmp_path: Path
) -> None:
    run = play(Poise(momentum=0.7, fold=False), tmp_path / "poise", network)
    assert_equal(shared(run), shared(play(FedAvgM(beta=0.7), tmp_path / "plain", network)))


# 2. Special cases.


@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_with_the_global_expert_alone_it_predicts_as_fedavg(network: str, tmp_path: Path) -> None:
    method = Poise(**SWITCHES["global only"], momentum=0, fold=False)
    run = play(method, tmp_path / "poise", network, on=skewed())
    plain = play("fedavg", tmp_path / "fedavg", network, on=skewed())
    assert values(run, "personal") == values(plain, "global")
    assert values(run, "personal", "loss") == pytest.approx(
        values(plain, "global", "loss"), rel=1e-5
    )
    assert all(own["weights"].tolist() == [1.0] for own in ends(run).values())


@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_with_all_merit_it_predicts_as_standalone(network: str, tmp_path: Path) -> None:
    run = play(Poise(merit=1.0, fold=False), tmp_path / "poise", network, on=skewed())
    plain = play("standalone", tmp_path / "alone", network, on=skewed())
    assert values(run, "personal") == values(plain, "personal")
    assert values(run, "personal", "loss") == pytest.approx(
        values(plain, "personal", "loss"), rel=1e-5
    )


@pytest.mark.thorough
def test_merit_moves_weight_to_the_model_trained_alone(tmp_path: Path) -> None:
    none, half = (
        ends(play(Poise(**PLAIN, merit=merit), tmp_path / str(merit), on=skewed()))
        for merit in (0.0, 0.5)
    )
    for client in none:
        np.testing.assert_allclose(
            half[client]["weights"], 0.5 * none[client]["weights"].numpy() + [0.5, 0, 0, 0]
        )


def test_the_tuned_expert_is_the_personal_model_of_finetune_bit_for_bit(tmp_path: Path) -> None:
    run, plain = (
        play(Poise(tune_epochs=3, tune_steps=0, momentum=0, fold=False), tmp_path / "a", "cnn"),
        play(Finetune(tune_epochs=3, tune_average="second_half"), tmp_path / "b", "cnn"),
    )
    for client, own in ends(run).items():
        assert_equal(own["tuned"], ends(plain)[client]["tuned"])


# 3. Offsets.


@pytest.mark.parametrize("network", ["cnn", "dropout"])
def test_offsets_balance_the_counts_of_the_training_labels(network: str, tmp_path: Path) -> None:
    run = play(Poise(rho=0.7, fold=False), tmp_path / "run", network, on=skewed())
    for client, own in ends(run).items():
        x, y = data_of(run, client, network)
        with torch.no_grad():
            p = (
                run.model("global", experiment=given(network))(x).double() + own["offsets"]
            ).softmax(1)
        counts = torch.bincount(y, minlength=CLASSES)
        torch.testing.assert_close(
            p.sum(0) + 0.7 * own["offsets"], counts.double(), rtol=0, atol=1e-4
        )
        assert torch.isfinite(own["offsets"]).all()
    assert ends(run)["ada"]["offsets"].argmax() == 0, "a client of one class moves towards it"


def given(network: str) -> eq.Experiment:
    config = settings(Poise(rho=0.7, fold=False), models={"model": NETWORKS[network]})
    return eq.Experiment(**config, dataset=eq.from_sites(skewed()))


def data_of(run: Run, client: str, network: str) -> tuple[Tensor, Tensor]:
    wanted = given(network)
    federation = eq.data.federate(wanted.data, wanted.seed, wanted.dataset)
    places = torch.from_numpy(
        np.array(federation.train[list(federation.ids).index(client)], dtype=np.int64)
    )
    return federation.x[places], federation.y[places]


def test_a_strong_pull_leaves_the_global_model(tmp_path: Path) -> None:
    run = play(Poise(rho=1e12), tmp_path / "run", on=skewed())
    assert all(float(own["offsets"].abs().max()) < 1e-9 for own in ends(run).values())


# 4. and 5. Weights and prior.


@pytest.mark.parametrize("prior", ["mean", "pooled"])
@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_prior_and_weights_follow_from_the_models_served(
    network: str, prior: Any, tmp_path: Path
) -> None:
    """Everything from the validation data on, once more in numpy, from the models as they left the
    run.
    """
    config = settings(
        Poise(prior=prior, fold=False), models={"model": NETWORKS[network]}, keep=100, rounds=3
    )
    wanted = eq.Experiment(**config, dataset=eq.from_sites(skewed()))
    run = simulate.run(wanted, tmp_path / "run")
    federation = eq.data.federate(wanted.data, wanted.seed, wanted.dataset)
    grid, q = simplex_grid(4), {}
    for place, client in enumerate(run.clients):
        places = torch.from_numpy(np.array(federation.validation[place], dtype=np.int64))
        x, y = federation.x[places], federation.y[places].numpy()
        own, tuned = (
            ends(run)[client],
            run.model("personal", client, experiment=wanted).features["tuned"],
        )
        with torch.no_grad():
            alone, shared, f = (
                net(x).double().numpy()
                for net in (
                    run.model("alone", client, wanted),
                    run.model("global", experiment=wanted),
                    tuned,
                )
            )
        q[client] = np.stack(
            [chance(z, y) for z in (alone, shared, shared + own["offsets"].numpy(), f)], 1
        )
        assert len(y) >= 10
    tables = {client: log_likelihoods(one, grid) for client, one in q.items()}
    mean = np.mean([posterior_mean(table, grid) for table in tables.values()], axis=0)
    pooled = posterior_mean(log_likelihoods(np.vstack(list(q.values())), grid), grid)
    np.testing.assert_allclose(prior_of(run), mean if prior == "mean" else pooled, atol=1e-6)
    for client, own in ends(run).items():
        assert on_simplex(own["weights"])
        np.testing.assert_allclose(
            own["weights"], mixture_weights(q[client], prior_of(run), 10.0), atol=1e-6
        )
        np.testing.assert_allclose(
            run.model("personal", client, wanted).head.weights, own["weights"], atol=1e-6
        )


def chance(logits: np.ndarray, y: np.ndarray) -> np.ndarray:
    shares = np.exp(logits - logits.max(1, keepdims=True))
    found: np.ndarray = (shares / shares.sum(1, keepdims=True))[np.arange(len(y)), y] + 1e-12
    return found


def evidence(rows: Mapping[str, Any], **more: Any) -> Ups:
    return Ups(
        [
            (
                client,
                None
                if row is None
                else Up(evidence=torch.tensor(row, dtype=torch.float64), **more),
            )
            for client, row in rows.items()
        ]
    )


def test_one_client_moves_the_mean_by_its_share_at_most_and_nonsense_does_not_count() -> None:
    draw, method = np.random.default_rng(0), Poise()
    honest = {str(k): draw.dirichlet(np.ones(4)).tolist() for k in range(5)}
    before = method.agreed_prior(evidence(honest))
    for lie in np.eye(4):
        assert (
            float(
                (method.agreed_prior(evidence({**honest, "3": lie.tolist()})) - before).abs().max()
            )
            <= 1 / 5
        )
    without = method.agreed_prior(
        evidence({client: row for client, row in honest.items() if client != "3"})
    )
    for nonsense in (
        [5.0, -4.0, 0.0, 0.0],
        [0.9, 0.9, 0.9, 0.9],
        [0.0] * 4,
        [1.0],
        [0.25] * 4 + [0.0],
    ):
        torch.testing.assert_close(
            method.agreed_prior(evidence({**honest, "3": nonsense})), without
        )
    torch.testing.assert_close(method.agreed_prior(evidence({**honest, "3": None})), without)
    torch.testing.assert_close(
        method.agreed_prior(evidence(dict(reversed(honest.items())))), before
    )
    torch.testing.assert_close(
        method.agreed_prior(evidence({"a": [0.0] * 4})), torch.full((4,), 0.25, dtype=torch.float64)
    )


def test_pooled_tables_add_in_any_order_and_grouping() -> None:
    draw, method, grid = np.random.default_rng(1), Poise(prior="pooled"), simplex_grid(4)
    q = {str(k): draw.uniform(0.01, 1, (6, 4)) for k in range(4)}
    tables = {client: log_likelihoods(one, grid).tolist() for client, one in q.items()}
    wanted = torch.from_numpy(
        posterior_mean(log_likelihoods(np.vstack(list(q.values())), grid), grid)
    )
    torch.testing.assert_close(method.agreed_prior(evidence(tables, experts=4)), wanted)
    grouped = {
        "0": log_likelihoods(np.vstack([q["0"], q["1"]]), grid),
        "2": tables["2"],
        "3": tables["3"],
    }
    torch.testing.assert_close(method.agreed_prior(evidence(grouped, experts=4)), wanted)
    torch.testing.assert_close(
        method.agreed_prior(evidence({**tables, "4": [0.0] * 455}, experts=4)), wanted
    )
    torch.testing.assert_close(
        method.agreed_prior(evidence({"0": [0.0] * 455}, experts=4)),
        torch.full((4,), 0.25, dtype=torch.float64),
    )


def test_few_validation_samples_say_nothing_about_the_prior_and_none_take_it(
    tmp_path: Path,
) -> None:
    data = {**skewed(), **sites({"di": 20}, seed=3)}  # three validation samples
    said: dict[str, Tensor] = {}
    original = Poise.agreed_prior

    def agreed(self: Poise, ups: Ups) -> Tensor:
        said.update(ups.table("evidence"))
        return original(self, ups)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Poise, "agreed_prior", agreed)
        run = play(Poise(), tmp_path / "run", on=data)
    assert not said["di"].any() and all(on_simplex(said[client]) for client in ("ada", "bo", "cy"))
    np.testing.assert_allclose(
        prior_of(run), torch.stack([said[client] for client in ("ada", "bo", "cy")]).mean(0)
    )
    assert not np.allclose(ends(run)["di"]["weights"], prior_of(run)), (
        "its own weights may use them"
    )
    bare = play(
        Poise(),
        tmp_path / "bare",
        on=data,
        data={"split": (0.85, 0.0, 0.15), "partition": "natural"},
    )
    np.testing.assert_array_equal(prior_of(bare), np.full(4, 0.25))
    assert all(own["weights"].tolist() == [0.25] * 4 for own in ends(bare).values())


def test_a_strong_prior_is_what_all_serve(tmp_path: Path) -> None:
    run = play(Poise(**PLAIN, kappa=1e12), tmp_path / "run", on=skewed())
    for own in ends(run).values():
        np.testing.assert_allclose(own["weights"], prior_of(run), atol=1e-9)


# 6. Classes and experts by other names.


def test_renamed_classes_rename_the_predictions(tmp_path: Path) -> None:
    """If the outputs of models are renamed, results are the same under the new names."""
    order = torch.tensor([2, 0, 1])
    found = {}
    for name, renamed in (("plain", torch.arange(3)), ("renamed", order)):
        data = {client: (x, renamed.numpy()[y]) for client, (x, y) in skewed().items()}
        bench, _ = bench_of(settings(Poise(tune_epochs=0), models={"model": NETWORKS["mlp"]}), data)
        initial = bench.initial("model")
        inverse = torch.argsort(renamed)
        moved = {
            key: value[inverse] if key.startswith("head") else value
            for key, value in initial.items()
        }
        tree = type(initial)(moved, "model", initial.untrained)
        client = Client(
            bench, "cy", END, 3, {"local": type(initial)(moved, "private", initial.untrained)}
        )
        down = Down(model=tree, prior=torch.full((3,), 1 / 3, dtype=torch.float64))
        method = Poise(tune_epochs=0)
        method.settle(client, down)
        with torch.no_grad():
            personal = method.serves(client, down)["personal"]
            found[name] = (
                client.state["weights"],
                personal.model.net(torch.from_numpy(skewed()["cy"][0])),
            )  # type: ignore[union-attr]
    torch.testing.assert_close(found["renamed"][0], found["plain"][0], rtol=0, atol=1e-6)
    torch.testing.assert_close(
        found["renamed"][1][:, order], found["plain"][1], rtol=1e-4, atol=1e-5
    )


# 7. What must not matter, and who is missing.


def test_test_data_change_no_weight(tmp_path: Path) -> None:
    def corrupted(federation: Federation) -> Federation:
        places = torch.from_numpy(federation.test.index.copy())
        federation.x[places], federation.y[places] = 1e6, CLASSES - 1 - federation.y[places]
        return federation

    clean = everything(play(Poise(), tmp_path / "clean", on=skewed()))
    with federation_changed(corrupted):
        assert_same(clean, everything(play(Poise(), tmp_path / "dirty", on=skewed())))


def test_partial_participation_ends_with_everybody(tmp_path: Path) -> None:
    run = play(
        Poise(fold=False),
        tmp_path / "run",
        on=skewed(),
        participation={"number": 1, "floor": 1},
        rounds=2,
    )
    asked = {client for row in run.rounds() for client in row["joined"]}
    assert asked < set(run.clients) and run.finish()[0]["joined"] == run.clients
    never = next(client for client in run.clients if client not in asked)
    alone = play(
        "standalone", tmp_path / "alone", on=skewed(), participation={"number": 1}, rounds=2
    )
    assert values(run, "alone") == values(alone, "personal")
    assert "local" not in ends(run)[never] and on_simplex(ends(run)[never]["weights"])


def test_who_missed_the_end_serves_what_it_learnt_alone_and_makes_up_for_it(tmp_path: Path) -> None:
    faults = {
        "script": [
            {"round": END, "client": "cy", "kind": "drop"},
            {"round": END, "exchange": 2, "client": "bo", "kind": "drop"},
        ]
    }
    method = Poise(spend=False)
    config = settings(method, models={"model": NETWORKS["mlp"]}, keep=100, faults=faults)
    wanted = eq.Experiment(**config, dataset=eq.from_sites(skewed()))
    run = simulate.run(wanted, tmp_path / "run")
    prior, before = (
        prior_of(run),
        {client: values(run, "personal", "loss") for client in run.clients},
    )
    for client in ("bo", "cy"):
        assert {
            key: v for key, v in values(run, "personal", "loss").items() if key[0] == client
        } == {key: v for key, v in values(run, "alone", "loss").items() if key[0] == client}
    assert "weights" not in ends(run)["bo"] and "judged" not in ends(run)["bo"]
    assert "weights" not in ends(run)["cy"] and "judged" in ends(run)["cy"]
    late = simulate.resume(tmp_path / "run", experiment=wanted)
    np.testing.assert_array_equal(prior_of(late), prior)
    assert all("weights" in own for own in ends(late).values())
    assert_equal(ends(late)["bo"]["tuned"], ends(run)["bo"]["tuned"])
    after = values(late, "personal", "loss")
    for client in late.clients:
        same = all(after[key] == before[client][key] for key in after if key[0] == client)
        assert same == (client not in ("bo", "cy"))
    bare = play(Poise(alone=False), tmp_path / "bare", on=skewed(), faults=faults)
    assert {k: v for k, v in values(bare, "personal").items() if k[0] == "cy"} == {
        k: v for k, v in values(bare, "global").items() if k[0] == "cy"
    }


def test_clients_with_architectures_of_their_own(tmp_path: Path) -> None:
    other = {"name": "cnn", "width": 2, "hidden": 4}
    private = {
        "name": "mlp",
        "hidden": [6],
        "clients": {"bo": other, "cy": {"name": "mlp", "hidden": [4, 3]}},
    }
    models = {"model": {"name": "mlp", "hidden": [6]}, "private": private}
    config = settings(Poise(fold=False), models=models)
    wanted = eq.Experiment(**config, dataset=eq.from_sites(skewed()))
    run = simulate.run(wanted, tmp_path / "run", transport="loopback")
    alone = played(settings(Standalone("private"), models=models), tmp_path / "alone", skewed())
    plain = played(
        settings("fedavg", models={"model": {"name": "mlp", "hidden": [6]}}),
        tmp_path / "fedavg",
        skewed(),
    )
    assert values(run, "alone") == values(alone, "personal") and values(run, "global") == values(
        plain, "global"
    )
    shapes = {
        client: len(list(run.model("personal", client, wanted).features["alone"].parameters()))
        for client in run.clients
    }
    assert shapes["ada"] == shapes["di"] == 4 and shapes["cy"] == 6 and shapes["bo"] > 6
    assert set(run.final()) == set(run.clients)
    folded = played(settings(Poise(), models=models), tmp_path / "folded", skewed())
    assert set(folded.final()) == set(folded.clients) and not folded.rejected()


def test_one_client_of_one_sample(tmp_path: Path) -> None:
    run = play(Poise(), tmp_path / "run", "cnn", on={**skewed(), **sites({"di": 1})})
    assert not run.rejected() and on_simplex(ends(run)["di"]["weights"])


def test_it_is_a_base_for_weights_and_inputs(tmp_path: Path) -> None:
    composed = compose(
        Poise(), weights=eq.methods.make("fedequilibria"), inputs=eq.methods.make("fedrdn")
    )
    run = played(settings(composed), tmp_path / "run", skewed())
    assert (
        run.status == "finished"
        and run.main_model == "personal"
        and run.finish()[0]["joined"] == run.clients
    )


# The guard, and the length of tuning.


def judged_client(rounds: int = 3, **changes: Any) -> tuple[Client, Poise]:
    """Return a client that has judged a model, and the method."""
    method = Poise(tune_epochs=1, tune_steps=0, **changes)
    bench, _ = bench_of(settings(method, models={"model": NETWORKS["mlp"]}), skewed())
    client = Client(bench, "cy", rounds + 1, rounds, {})
    method.judge(client, Down(model=bench.initial("model")))
    return client, method


def test_a_global_model_that_became_worse_after_judging_does_not_count() -> None:
    client, method = judged_client()
    good = client.initial()
    bad = good + 50.0 * good.params
    judged_tuned = client.state["tuned"]
    method.prepare(client, Down(model=bad))
    assert_equal(client.state["guarded"], good)
    method.settle(client, Down(prior=torch.full((4,), 0.25, dtype=torch.float64)))
    served = method.serves(client, Down(model=bad))
    personal = served["personal"].model.net  # type: ignore[union-attr]
    assert_equal(personal.features["global"].state_dict(), good)
    assert_equal(served["global"].model.tree(), bad)  # type: ignore[union-attr]
    assert (client.state["tuned"] - judged_tuned).norm() < (bad - good).norm() / 10


def test_a_global_model_that_is_not_finite_for_this_client_does_not_count() -> None:
    client, method = judged_client()
    method.prepare(client, Down(model=1e30 * client.initial()))
    assert "guarded" in client.state
    assert all(torch.isfinite(tensor).all() for tensor in client.state["tuned"].values())


def test_a_better_global_model_replaces_the_one_that_was_judged() -> None:
    client, method = judged_client()
    better = client.load(client.initial())
    client.fit(better, epochs=3)
    method.prepare(client, Down(model=better.tree()))
    assert "guarded" not in client.state and "judged" not in client.state


def test_a_client_that_gave_its_own_model_up_serves_what_it_tuned_until_it_has_weights() -> None:
    client, method = judged_client()
    client.state["saved_epochs"] = 2
    judged, tuned = client.state["judged"], client.state["tuned"]
    better = client.load(client.initial())
    client.fit(better, epochs=3)
    assert_equal(personal_of(client, method, better.tree()), better.tree() + (tuned - judged))
    bad = judged + 50.0 * judged.params
    assert_equal(personal_of(client, method, bad), judged + (tuned - judged))
    method.prepare(client, Down(model=better.tree()))
    assert_equal(personal_of(client, method, better.tree()), client.state["tuned"])


def personal_of(client: Client, method: Poise, shared: Any) -> Any:
    served = method.serves(client, Down(model=shared))
    return served["personal"].model.tree()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "epochs"),
    [
        ({"tune_epochs": 5, "tune_steps": 100, "tune_cap": 3}, 8),  # of 13 batches of five samples
        ({"tune_epochs": 5, "tune_steps": 30, "tune_cap": 3}, 5),
        ({"tune_epochs": 5, "tune_steps": 1000, "tune_cap": 3}, 9),  # three times three rounds
        ({"tune_epochs": 5, "tune_steps": 1000, "tune_cap": 1}, 5),
    ],
)
def test_clients_with_little_data_tune_for_more_epochs_up_to_a_limit(
    changes: dict[str, int], epochs: int
) -> None:
    method = Poise(**changes)  # type: ignore[arg-type]
    bench, _ = bench_of(settings(method, models={"model": NETWORKS["mlp"]}), skewed())
    client = Client(bench, "ada", 1, 3, {})
    assert -(-len(client.train) // 5) == 13
    assert method.tuning_epochs(client) == epochs


@pytest.mark.parametrize(
    ("method", "rounds", "held_out"),
    [
        (Poise(), 15, 5),
        (Poise(), 60, 20),
        (Poise(), 1, 1),
        (Poise(hold=0.29), 100, 29),
        (Poise(hold=0.01), 15, 1),
        (Poise(hold=1.0), 15, 15),
        (Poise(variant="one"), 15, 15),
        (Poise(fold=False), 15, None),
        (compose(FedAvg(), finish=Poise()), 15, 15),
        (compose(FedAvg(), finish=Poise(fold=False)), 15, None),
    ],
)
def test_the_rounds_in_which_validation_data_are_held_out(
    method: Method, rounds: int, held_out: int | None
) -> None:
    assert method.held_out_rounds(rounds) == held_out


# Clients that differ in when they judge.


def test_a_client_that_is_never_asked_after_the_hold_out_phase_judges_at_the_end(
    tmp_path: Path,
) -> None:
    run = play(Poise(**PLAIN), tmp_path / "run", on=skewed(), participation={"number": 2})
    *earlier, last = (set(row["joined"]) for row in run.rounds())
    before = client_states(run, 3)
    judged = {client for client, own in before.items() if "likelihoods" in own}
    assert judged == last & set.union(*earlier), "a client judges if it has a model of its own"
    assert set(run.clients) - last
    for own in ends(run).values():
        assert on_simplex(own["weights"]) and not {"likelihoods", "judged"} & set(own)


def test_validation_data_decide_before_they_are_trained_on(tmp_path: Path) -> None:
    """Other validation labels change nothing but the evidence, until a client has judged."""

    def relabelled(federation: Federation) -> Federation:
        places = torch.from_numpy(federation.validation.index.copy())
        federation.y[places] = CLASSES - 1 - federation.y[places]
        return federation

    plain = play(Poise(**PLAIN), tmp_path / "plain", on=skewed())
    with federation_changed(relabelled):
        other = play(Poise(**PLAIN), tmp_path / "other", on=skewed())
    assert_equal(shared(plain, 2), shared(other, 2))
    first, second = client_states(plain, 3), client_states(other, 3)
    for client in plain.clients:
        for name in ("judged", "tuned"):
            assert_equal(first[client][name], second[client][name])
        assert not torch.equal(first[client]["likelihoods"], second[client]["likelihoods"])


@pytest.mark.parametrize("stopped_after", [2, 3])
def test_killed_and_resumed_it_gives_the_same_bits(stopped_after: int, tmp_path: Path) -> None:
    config = settings(Poise(), models={"model": NETWORKS["mlp"]}, rounds=3)
    wanted = eq.Experiment(**config, dataset=eq.from_sites(skewed()))
    whole = simulate.run(wanted, tmp_path / "whole")

    def stop(record: Any) -> None:
        if record.round == stopped_after:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        simulate.run(wanted, tmp_path / "cut", Calling(on_round=stop))
    again = simulate.resume(tmp_path / "cut", experiment=wanted)
    assert_same(everything(whole), everything(again))
    assert whole.final("loss") == again.final("loss")


def test_a_run_says_that_validation_values_are_training_values(tmp_path: Path) -> None:
    run = play(Poise(), tmp_path / "run", on=skewed())
    assert any("after round 1" in note for note in notes(read_result(run)))
    plain = play(Poise(fold=False), tmp_path / "plain", on=skewed())
    assert not any("validation" in note for note in notes(read_result(plain)))


# Clients whose evidence is against the model trained alone.


def likelihoods_of(alone: float, others: float, samples: int = 30) -> Tensor:
    """Return equal likelihoods of all samples: of the model trained alone, and of the others."""
    row = torch.tensor([alone, others, others, others], dtype=torch.float64)
    return row.repeat(samples, 1)


def judging(monkeypatch: pytest.MonkeyPatch, found: Mapping[str, Tensor]) -> None:
    """Let clients find these likelihoods when they judge."""
    monkeypatch.setattr(Poise, "likelihoods", lambda self, client, down: found[client.id])


def test_a_client_whose_evidence_is_against_the_model_trained_alone_gives_it_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = {
        "ada": likelihoods_of(0.2, 0.9),
        "bo": likelihoods_of(0.9, 0.2),
        "cy": likelihoods_of(0.5, 0.5, samples=0),
        "di": likelihoods_of(0.5, 0.5),
    }
    judging(monkeypatch, found)
    run = play(Poise(tune_steps=0), tmp_path / "run", on=skewed())
    before, judged = client_states(run, 1), client_states(run, 3)
    assert_equal(judged["ada"]["local"], before["ada"]["local"])
    for client in ("bo", "cy", "di"):
        assert not torch.equal(
            judged[client]["local"]["head.weight"], before[client]["local"]["head.weight"]
        )
        assert "saved_epochs" not in judged[client]
    assert judged["ada"]["saved_epochs"] == 2
    weights = {client: own["weights"].numpy() for client, own in ends(run).items()}
    assert weights["ada"][0] == 0 and on_simplex(weights["ada"])
    expected = mixture_weights(found["ada"], prior_of(run), 10.0)[1:]
    np.testing.assert_allclose(weights["ada"][1:], expected / expected.sum())
    assert weights["bo"][0] > 0.5 and weights["cy"][0] > 0


def test_less_than_an_equal_share_is_enough_to_give_up_and_few_samples_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = {
        "ada": likelihoods_of(0.5, 0.6, samples=3),  # a share of 0.23 among four experts
        "bo": likelihoods_of(0.9, 0.2, samples=5),  # too few for the prior, and for its own model
        "cy": likelihoods_of(0.5, 0.6),
        "di": likelihoods_of(0.6, 0.5),
    }
    judging(monkeypatch, found)
    run = play(Poise(tune_steps=0), tmp_path / "run", on=skewed())
    gave_up = {client for client, own in ends(run).items() if "saved_epochs" in own}
    assert gave_up == {"ada", "cy"}


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_epochs_that_a_client_saves_are_spent_on_tuning(
    epochs: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    judging(monkeypatch, {client: likelihoods_of(0.2, 0.9) for client in MANY})
    training = {**settings("fedavg")["training"], "epochs": epochs}
    with counted() as spent:
        run = play(Poise(tune_steps=0), tmp_path / "a", on=skewed(), training=training)
    with counted() as kept:
        play(Poise(tune_steps=0, spend=False), tmp_path / "b", on=skewed(), training=training)
    assert spent["client", "gradient"] == kept["client", "gradient"]
    steps = sum(row["steps"] for row in run.finish())
    assert steps > 0 and all(own["saved_epochs"] == 2 * epochs for own in ends(run).values())


@pytest.mark.parametrize("switches", [{"merit": 0.1}, {"spend": False}, {"tune_epochs": 0}])
def test_who_is_to_serve_the_model_trained_alone_does_not_give_it_up(
    switches: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    columns = 3 if "tune_epochs" in switches else 4
    judging(monkeypatch, {client: likelihoods_of(0.2, 0.9)[:, :columns] for client in MANY})
    run = play(Poise(**switches), tmp_path / "run", on=skewed())
    for own in ends(run).values():
        assert "saved_epochs" not in own and own["weights"][0] > 0


# What it costs, ships and refuses.


# What it costs, ships and refuses.


@pytest.mark.parametrize(
    ("switches", "wanted"),
    [
        ({}, 2 + 5 / 6),
        ({"alone": False}, 1 + 5 / 6),
        ({"tune_epochs": 0}, 2.0),
    ],
)
def test_training_passes(switches: dict[str, Any], wanted: float, tmp_path: Path) -> None:
    training = {"lr": 0.05, "batch": 5, "epochs": 2}
    method = Poise(**switches, tune_steps=0, fold=False)
    with counted() as passes:
        run = play(method, tmp_path / "run", on=skewed(), training=training, rounds=3)
    assert passes["client", "gradient"] / (
        6 * sum(run.store.meta("sizes")["train"])
    ) == pytest.approx(wanted)
    plain = play("fedavg", tmp_path / "plain", on=skewed(), training=training, rounds=3)
    bytes_of = lambda one: [(row["bytes_down"], row["bytes_up"]) for row in one.rounds()]  # noqa: E731
    assert bytes_of(run) == bytes_of(plain)
    (end,) = run.finish()
    experts, model = (
        4 - len(switches.keys() & {"alone", "tune_epochs"}),
        server_state(run).model.bytes(),
    )
    assert (end["bytes_up"], end["bytes_down"]) == (4 * 8 * experts, 4 * (model + 8 * experts))


@pytest.mark.thorough
def test_the_mixture_ships_as_one_file_with_its_card(tmp_path: Path) -> None:
    config = settings(Poise(), models={"model": NETWORKS["cnn"]})
    wanted = eq.Experiment(**config, dataset=eq.from_sites(skewed()))
    run = simulate.run(wanted, tmp_path / "run")
    path, card = export(run, client="bo", experiment=wanted)
    net = run.model("personal", "bo", experiment=wanted)
    tensors = load_file(path)
    assert (
        tensors.keys() == net.state_dict().keys()
        and {"head.weights", "head.offsets"} <= tensors.keys()
    )
    assert torch.equal(tensors["head.weights"], net.head.weights) and on_simplex(
        tensors["head.weights"]
    )
    text = card.read_text()
    assert (
        f"- mixture of experts, by weight: alone {tensors['head.weights'][0]:.3f}, global " in text
    )
    losses = {
        model: run.final("loss", model, "validation")["bo"]
        for model in ("personal", "global", "alone")
    }
    assert (
        "- loss on the client's validation data, which models may have been trained on: "
        + ", ".join(f"{m} {v:.4f}" for m, v in losses.items())
        in text
    )


def test_what_it_cannot_do_is_refused(tmp_path: Path) -> None:
    settings_of = lambda method: eq.Experiment(**settings(method), dataset=eq.from_sites(skewed()))  # noqa: E731
    assert "merit=0.5 gives weight to the model trained alone" in refused(
        settings_of(Poise(alone=False, merit=0.5)), tmp_path / "a"
    )
