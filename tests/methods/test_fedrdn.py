"""FedRDN: statistics by brute force, draws, what enters the network where, and exported models that
predict as measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import equipoise as eq
from equipoise.client import Client, Inputs
from equipoise.data import Parts, federate
from equipoise.experiment.build import prepare
from equipoise.method import Cohort, Method, Ups
from equipoise.methods import make
from equipoise.methods.fedakd import FedAKD
from equipoise.methods.fedrdn import FedRDN, Standardised, standardised
from equipoise.methods.moon import MOON
from equipoise.methods.standalone import Standalone
from equipoise.models.network import Prepared
from equipoise.records import Down
from equipoise.runs.export import export, predictions
from equipoise.runs.run import Run
from equipoise.server import Server
from equipoise.storage.checkpoint import load_server
from equipoise.storage.store import RunError
from equipoise.task import Task
from equipoise.training.workbench import Workbench
from tests.helpers.counting import counted
from tests.helpers.digits import NETWORKS, few
from tests.helpers.plain import assert_near, same

Sites = Mapping[str, tuple[np.ndarray, np.ndarray]]
SHIFTS = {
    "ada": (0.0, 1.0),
    "bo": (3.0, 0.5),
    "cy": (-2.0, 4.0),
    "di": (10.0, 2.0),
}  # of each client's pixels: where, and how wide


def sites(
    shifts: Mapping[str, tuple[float, float]] = SHIFTS, size: int = 40, channels: int = 2
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Images of two channels whose class is visible once they are standardised.

    Each client has another range of pixels.
    """
    draw, found = np.random.Generator(np.random.PCG64(0)), {}
    for name, (centre, width) in shifts.items():
        y = draw.integers(0, 3, size)
        pattern = np.sin(np.linspace(0, 3, 64 * channels)[None] * (y[:, None] + 1)).reshape(
            size, channels, 8, 8
        )
        x = pattern + 0.8 * draw.standard_normal((size, channels, 8, 8))
        found[name] = ((centre + width * x).astype(np.float32), y.astype(np.int64))
    return found


def setting(
    method: Any = "fedrdn", data: Sites | None = None, network: Any = "mlp", **changes: Any
) -> eq.Experiment:
    model = {"name": network} if network == "cnn" else {"name": "mlp", "hidden": [12]}
    wanted = {
        "data": {"partition": "natural", "split": (0.5, 0.1, 0.4)},
        "model": model,
        "evaluation": {"every": 1},
        **changes,
    }
    return few(method, dataset=eq.from_sites(dict(data or sites())), **wanted)


def bench_of(wanted: eq.Experiment) -> Workbench:
    federation = federate(wanted.data, wanted.seed, wanted.dataset)
    return prepare(wanted, federation.task, federation.ids, federation)[0]


def brute(x: np.ndarray) -> np.ndarray:
    """Means over images of each channel's mean and unbiased deviation, pixel by pixel."""
    rows = []
    for image in x.astype(np.float64):
        for_image = []
        for channel in image:
            pixels = channel.reshape(-1).tolist()
            mean = sum(pixels) / len(pixels)
            for_image.append(
                (mean, (sum((p - mean) ** 2 for p in pixels) / (len(pixels) - 1)) ** 0.5)
            )
        rows.append(for_image)
    return np.array(rows).mean(0).T


def raw(bench: Workbench, client: str, part: str = "train") -> tuple[np.ndarray, np.ndarray]:
    federation = bench.federation
    assert federation is not None
    held = getattr(federation, part)[bench.position[client]]
    return federation.x[held.copy()].numpy(), federation.y[held.copy()].numpy()


def test_statistics_are_those_of_a_loop_over_pixels(tmp_path: Path) -> None:
    run = eq.run(setting(), tmp_path / "run")
    state, bench = load_server(run.store), bench_of(setting())
    assert set(state.own) == set(run.clients)
    for client in run.clients:
        np.testing.assert_allclose(
            state.own[client], brute(raw(bench, client)[0]), rtol=1e-5, atol=1e-6
        )
    assert torch.equal(
        state.pool, torch.stack([state.own[client] for client in sorted(run.clients)])
    )


@pytest.mark.parametrize("draw", ["pair_per_image", "independent_per_batch"])
@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_one_client_is_fedavg_on_standardised_data(tmp_path: Path, network: str, draw: Any) -> None:
    data = sites({"di": SHIFTS["di"]})
    alone = eq.run(setting(FedRDN(draw=draw), data, network), tmp_path / "rdn")
    mean, deviation = brute(raw(bench_of(setting("fedavg", data)), "di")[0])
    x, y = data["di"]
    prepared = {
        "di": (
            ((x - mean[:, None, None]) / (deviation[:, None, None] + 1e-6)).astype(np.float32),
            y,
        )
    }
    plain = eq.run(setting("fedavg", prepared, network), tmp_path / "avg")
    assert_near(load_server(alone.store).model, load_server(plain.store).model, 5e-6)
    assert alone.final() == plain.final()


def inputs_of(method: FedRDN, pool: torch.Tensor, own: torch.Tensor) -> Inputs:
    client = Client(bench_of(setting()), "ada", 1, 1, {})
    found = method.inputs(client, Down(pool=pool, own=own))
    assert found is not None
    return found


def some_pool(clients: int = 5) -> torch.Tensor:
    return torch.rand(clients, 2, 2, generator=torch.Generator().manual_seed(2)) + 0.5


def images(number: int = 40) -> torch.Tensor:
    return torch.rand(number, 2, 8, 8, generator=torch.Generator().manual_seed(3))


def test_every_image_is_standardised_by_one_pair_drawn_anew_at_every_visit() -> None:
    pool, x, draw = some_pool(), images(4000), torch.Generator().manual_seed(0)
    inputs = inputs_of(FedRDN(), pool, pool[0])
    counts, before = np.zeros(5), None
    for _ in range(2):
        made = inputs.train(x, draw)
        candidates = torch.stack(
            [(x - pair[0][:, None, None]) / (pair[1][:, None, None] + 1e-6) for pair in pool]
        )
        gaps = (candidates - made).abs().flatten(2).amax(2)
        who = gaps.argmin(0)
        assert gaps.amin(0).max() < 1e-5, "the mean and the deviation are of one client"
        counts += np.bincount(who, minlength=5)
        assert before is None or not torch.equal(before, who)
        before = who
        back = made * (pool[who, 1][..., None, None] + 1e-6) + pool[who, 0][..., None, None]
        torch.testing.assert_close(back, x)
    assert (abs(counts - 1600) < 4 * (8000 * 0.2 * 0.8) ** 0.5).all(), "all clients are drawn alike"


def test_the_released_draw_takes_one_mean_and_one_deviation_per_batch() -> None:
    pool, x, draw = some_pool(), images(), torch.Generator().manual_seed(0)
    inputs, pairs = inputs_of(FedRDN(draw="independent_per_batch"), pool, pool[0]), []
    for _ in range(60):
        made = inputs.train(x, draw)
        gaps = {
            (j, k): float(
                (made - (x - pool[j, 0][:, None, None]) / (pool[k, 1][:, None, None] + 1e-6))
                .abs()
                .max()
            )
            for j in range(5)
            for k in range(5)
        }
        pairs.append(min(gaps, key=lambda pair: gaps[pair]))
        assert gaps[pairs[-1]] < 1e-5
    assert len(set(pairs)) > 12 and any(j != k for j, k in pairs)


@pytest.mark.parametrize("draw", ["pair_per_image", "independent_per_batch"])
def test_equal_statistics_leave_nothing_to_the_draw(draw: Any) -> None:
    pair, x = some_pool()[0], images()
    inputs = inputs_of(FedRDN(draw=draw), pair.expand(5, 2, 2), pair)
    made = [inputs.train(x, torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    assert torch.equal(*made) and torch.equal(made[0], inputs.other(x))


def test_own_statistics_outside_training_without_any_draw(tmp_path: Path) -> None:
    wanted = setting()
    run, bench = eq.run(wanted, tmp_path / "run"), bench_of(wanted)
    method, state = FedRDN(), load_server(run.store)
    for client_id in run.clients:
        client = Client(bench, client_id, 1, 1, {})
        inputs = method.inputs(client, method.deliver(None, state, client_id))  # type: ignore[arg-type]
        assert inputs is not None and inputs.random
        x = torch.from_numpy(raw(bench, client_id, "test")[0])
        mean, deviation = brute(raw(bench, client_id)[0])
        np.testing.assert_allclose(
            inputs.other(x),
            (x.numpy() - mean[:, None, None]) / (deviation[:, None, None] + 1e-6),
            rtol=2e-4,
            atol=2e-4,
        )
        assert torch.equal(inputs.other(x), inputs.other(x))
    assert not inputs_of(method, state.pool[:1], state.pool[0]).random, (
        "with one pair samples can be cached"
    )


def test_distances_of_features_are_those_of_standardised_images(tmp_path: Path) -> None:
    """The same change of brightness and contrast at every client vanishes when images are
    standardised, and so must its trace in what is measured.
    """

    def distances(name: str, data: Sites) -> dict[tuple[str, str], float]:
        run = eq.run(
            setting(data=data, network="cnn", rounds=1, evaluation={"distances": True}),
            tmp_path / name,
        )
        return {
            (row["client"], row["metric"]): row["value"]
            for row in run.table(phase="after_local", split="embedding")
        }

    plain, brighter = (
        distances("plain", sites()),
        distances("brighter", {name: (5 * x + 20, y) for name, (x, y) in sites().items()}),
    )
    assert len(plain) == 2 * len(SHIFTS)
    assert brighter == pytest.approx(plain, rel=1e-2)


def test_constant_images_stay_finite(tmp_path: Path) -> None:
    data = sites()
    data["bo"] = (np.full_like(data["bo"][0], 5.0), data["bo"][1])
    run = eq.run(setting(data=data, training={"lr": 1e-9}), tmp_path / "run")
    assert load_server(run.store).own["bo"].tolist() == [[5.0, 5.0], [0.0, 0.0]]
    assert not run.rejected()
    assert not standardised(
        torch.full((1, 2, 8, 8), 0.5), torch.full((2,), 0.5), torch.zeros(2)
    ).any()


def test_a_client_without_training_images_takes_the_mean_of_the_others() -> None:
    bench, method = bench_of(setting()), FedRDN()
    assert bench.federation is not None
    parts = [
        part if client != "bo" else part[:0]
        for client, part in zip(bench.federation.ids, bench.federation.train, strict=True)
    ]
    bench.federation = replace(bench.federation, train=Parts.of(parts))
    server = Server(bench, bench.federation.ids, dict.fromkeys(bench.federation.ids, 1), rounds=1)

    class Everyone(Cohort):
        def run(self, step: Any, down: Any = None, **more: Any) -> Ups:
            assert step.__name__ == "statistics" and more == {"strict": True}
            return Ups(
                [(client, step(Client(bench, client, 0, 1, {}), Down())) for client in server.ids]
            )

    state = method.setup(server, method.start(server), Everyone())
    assert state.pool.shape == (3, 2, 2), "nobody draws statistics of no images"
    torch.testing.assert_close(
        state.own["bo"], (state.own["ada"] + state.own["cy"] + state.own["di"]) / 3
    )
    inputs = method.inputs(Client(bench, "bo", 1, 1, {}), method.deliver(server, state, "bo"))
    assert inputs is not None and torch.isfinite(inputs.other(images())).all()
    bench.federation = replace(bench.federation, train=Parts.of([part[:0] for part in parts]))
    with pytest.raises(ValueError, match="no client has any"):
        method.setup(server, method.start(server), Everyone())


def test_clients_that_are_never_asked_have_statistics_too(tmp_path: Path) -> None:
    run = eq.run(setting(participation={"number": 1}, rounds=1), tmp_path / "run")
    assert len(run.rounds()[0]["joined"]) == 1
    assert set(load_server(run.store).own) == set(run.clients) and set(run.final()) == set(
        run.clients
    )


def score(net: Any, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Accuracy and cross-entropy."""
    with torch.no_grad():
        logits = net(torch.from_numpy(x)).double()
    loss = -logits.log_softmax(1)[torch.arange(len(y)), torch.from_numpy(y)].mean()
    return float((logits.argmax(1).numpy() == y).mean()), float(loss)


def measured_again(run: Run, bench: Workbench, folder: Path) -> None:
    """The module, the exported file and the predictions of every client give what was measured for
    the main model.
    """
    final = {client: (value, run.final("loss")[client]) for client, value in run.final().items()}
    assert len(set(final.values())) == len(run.clients)
    for client in run.clients:
        x, y = raw(bench, client, "test")
        assert score(run.model(run.main_model, client), x, y) == pytest.approx(
            final[client], rel=1e-5
        )
        entries = load_file(export(run, None, client, folder / f"{client}.safetensors")[0])
        mean, deviation = brute(raw(bench, client)[0])
        np.testing.assert_allclose(entries["inputs.mean"], mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(entries["inputs.std"], deviation, rtol=1e-5)
        loaded = Prepared(
            Standardised(torch.zeros(2), torch.zeros(2)), bench.take("model").net
        ).eval()
        loaded.load_state_dict(entries)
        assert score(loaded, x, y) == pytest.approx(final[client], rel=1e-5)
        np.savez(folder / "new.npz", x=x)
        _, rows = predictions(run, folder / "new.npz", None, client)
        assert np.mean(np.array([int(row[1]) for row in rows]) == y) == pytest.approx(
            final[client][0]
        )
        assert np.mean(
            [-np.log(row[2 + label]) for row, label in zip(rows, y, strict=True)]
        ) == pytest.approx(final[client][1], rel=1e-3)


@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_what_is_exported_predicts_as_measured(tmp_path: Path, network: str) -> None:
    wanted = setting(network=network, rounds=6, training={"lr": 0.05, "epochs": 4})
    run, bench = eq.run(wanted, tmp_path / "run"), bench_of(wanted)
    assert run.main_model == "global" and run.models() == ["global"]
    measured_again(run, bench, tmp_path)
    assert np.mean(list(run.final().values())) > 0.6
    bare = bench.take("model", load_server(run.store).model).net.eval()
    # without its inputs the network says something else: the checks above would see it
    for client in run.clients:
        assert score(bare, *raw(bench, client, "test"))[1] != pytest.approx(
            run.final("loss")[client], rel=0.01
        )
    with pytest.raises(RunError, match="belongs to a client; say which"):
        export(run)


@pytest.mark.parametrize(
    "base", [FedAKD(), Standalone(), MOON()], ids=lambda base: type(base).__name__
)
def test_it_fills_the_slot_inputs_of_other_methods(tmp_path: Path, base: Method) -> None:
    wanted = setting(eq.compose(base, inputs=FedRDN()), rounds=4)
    run = eq.run(wanted, tmp_path / "run")
    assert "own" in load_server(run.store)["@fedrdn"]
    measured_again(run, bench_of(wanted), tmp_path)


def test_on_a_shared_test_set_each_client_uses_its_own_statistics(tmp_path: Path) -> None:
    data = {
        "name": "digits",
        "partition": "dirichlet:0.3",
        "clients": 3,
        "samples": 300,
        "test": "global",
    }
    wanted = few("fedrdn", data=data, rounds=2, evaluation={"every": 1})
    run, federation = eq.run(wanted, tmp_path / "run"), federate(wanted.data, wanted.seed)
    x, y = (
        federation.x[federation.shared_test].numpy(),
        federation.y[federation.shared_test].numpy(),
    )
    assert set(run.final()) == set(run.clients), "one value per client, not one for all"
    for client in run.clients:
        assert score(run.model("global", client), x, y) == pytest.approx(
            (run.final()[client], run.final("loss")[client]), rel=1e-5
        )


def test_statistics_are_gathered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    original = FedRDN.statistics
    monkeypatch.setattr(
        FedRDN,
        "statistics",
        lambda self, client, down: (
            asked.append((client.id, client.round)),
            original(self, client, down),
        )[1],
    )
    FedRDN.statistics.__name__ = "statistics"
    with counted() as passes:
        run = eq.run(setting(training={"epochs": 2}, rounds=3), tmp_path / "run")
    assert sorted(asked) == [(client, 0) for client in sorted(run.clients)]
    assert passes == {("client", "gradient"): 3 * 2 * sum(run.store.meta("sizes")["train"])}


@pytest.mark.parametrize("shape", [(13,), (5, 7), (3, 1, 1)])
def test_what_is_no_image_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="channels of images") as error:
        FedRDN().check(Task("classification", shape, 2))
    assert str(shape) in str(error.value)
    FedRDN().check(Task("regression", (3, 2, 1), 1))


def test_refusals_come_before_round_1(tmp_path: Path) -> None:
    draw = np.random.Generator(np.random.PCG64(0))
    data = {
        name: (draw.standard_normal((9, 3)).astype(np.float32), np.arange(9) % 2) for name in "ab"
    }
    with pytest.raises(ValueError, match="channels of images"):
        eq.run(setting(data=data), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="method.draw"):
        make("fedrdn", {"draw": "pair"})


def test_the_networks_of_other_tests_train_with_it(tmp_path: Path) -> None:
    """Digits, with a network that drops: the run repeats bit for bit though statistics and units
    are drawn.
    """
    first, second = (eq.run(few("fedrdn", "dropout"), tmp_path / name) for name in ("a", "b"))
    assert "dropout" in NETWORKS and same(
        load_server(first.store).model, load_server(second.store).model
    )


def test_a_constant_channel_is_divided_by_a_millionth() -> None:
    x = torch.full((1, 2, 2, 2), 3.0, dtype=torch.float64)
    found = standardised(
        x,
        torch.tensor([3.0, 2.0], dtype=torch.float64),
        torch.tensor([0.0, 0.0], dtype=torch.float64),
    )
    torch.testing.assert_close(found[0, :, 0, 0], torch.tensor([0.0, 1e6], dtype=torch.float64))
