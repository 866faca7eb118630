"""FedMDFG: its direction against a general solver, its rounds against a plain float64 loop, and
steps that harm nobody.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import equipoise as eq
from equipoise.methods.fedmdfg import HUGE, FedMDFG
from equipoise.records import Down, PerClient, State
from equipoise.storage.checkpoint import load_server
from equipoise.tree import Tree
from equipoise.weighting.guidance import Direction, descent, evenness
from tests.helpers.digits import refused, replies
from tests.helpers.images import at, bench, dropping, net_of, passes_of, play, shared
from tests.helpers.problems import scalar, server_state, weight
from tests.helpers.runs import sites

NETWORKS: dict[str, Any] = {
    "mlp": {"name": "mlp", "hidden": [6]},
    "conv": {"name": "proxy_cnn"},
    "dropout": dropping,
}
SKEWED = sites(labels={"ada": [0, 0, 0, 1], "bo": [2], "cy": [0, 1, 1, 2], "di": [0, 2]})


def found_for(
    gradients: np.ndarray,
    losses: Sequence[float],
    theta: float = 1.0,
    force: bool = False,
    absent: int = 0,
) -> Direction | None:
    lengths = np.linalg.norm(gradients, axis=1)[: len(gradients) - absent]
    live = np.flatnonzero(lengths > 1e-6)
    return descent(
        gradients @ gradients.T, lengths, live, np.array(losses, float), math.radians(theta), force
    )


def shortest(rows: np.ndarray) -> np.ndarray:
    """The shortest mean of the rows, by a general solver."""
    best = None
    for start in [np.ones(len(rows)) / len(rows), *np.eye(len(rows))]:
        found = minimize(
            lambda w: (w @ rows) @ (w @ rows),
            start,
            jac=lambda w: 2 * rows @ (w @ rows),
            bounds=[(0, 1)] * len(rows),
            method="SLSQP",
            constraints=[
                {"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(len(w))}
            ],
            options={"ftol": 1e-15, "maxiter": 500},
        )
        best = found if best is None or found.fun < best.fun else best
    assert best is not None
    return np.asarray(best.x @ rows)


def plain_direction(
    gradients: np.ndarray, losses: np.ndarray, theta: float, force: bool, past: np.ndarray
) -> tuple[np.ndarray, float, bool, np.ndarray]:
    """Steps 4 to 6 written out: the direction, its scale, whether it is guided, and its rows."""
    live = [i for i, g in enumerate(gradients) if np.linalg.norm(g) > 1e-6]
    mean = np.mean([np.linalg.norm(gradients[i]) for i in live])
    scaled = np.array([gradients[i] / np.linalg.norm(gradients[i]) * mean for i in live])
    f = np.array([losses[i] for i in live])
    f, p = f / np.linalg.norm(f), np.ones(len(f)) / math.sqrt(len(f))
    rows = [*scaled, *past]
    h = (p @ f) * f - p
    guided = bool(
        np.linalg.norm(h) > 1e-6 and (math.degrees(math.acos(min(1, p @ f))) > theta or force)
    )
    if guided:
        rows.append(sum(h[k] / np.linalg.norm(h) * scaled[k] for k in range(len(f))))
    d = shortest(np.array(rows))
    scale = np.linalg.norm(scaled.mean(0)) / np.linalg.norm(d)
    return d * scale, float(scale), guided, np.array(rows)


@pytest.mark.parametrize("theta", [0.0, 1.0, 90.0])
def test_the_direction_matches_a_general_solver_and_descends_along_every_row(theta: float) -> None:
    draw = np.random.default_rng(0)
    for trial in range(40):
        clients, absent = int(draw.integers(1, 6)), int(draw.integers(0, 3))
        gradients = (draw.standard_normal((clients + absent, 12)) + 0.8) * draw.uniform(
            0.1, 5, (clients + absent, 1)
        )
        losses = draw.uniform(0.1, 3, clients)
        found = found_for(gradients, losses, theta, force=trial % 2 == 0, absent=absent)
        d, scale, guided, rows = plain_direction(
            gradients[:clients], losses, theta, trial % 2 == 0, gradients[clients:]
        )
        assert found is not None and found.guided == guided
        np.testing.assert_allclose(found.rows @ gradients, rows, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(found.shares @ gradients, d, rtol=1e-4, atol=1e-4)
        assert found.scale == pytest.approx(scale, rel=1e-4) and found.scale >= 1
        shortest_one = found.shares @ gradients / found.scale
        assert (rows @ shortest_one >= shortest_one @ shortest_one * (1 - 1e-6)).all()


def test_equal_losses_have_no_guide_even_by_force() -> None:
    gradients = np.random.default_rng(1).standard_normal((3, 8)) + 1
    for value in (1.0, 1e-3, 0.0):
        found = found_for(gradients, [value] * 3, theta=0.0, force=True)
        assert found is not None and not found.guided and len(found.rows) == 3
    unequal = found_for(gradients, [1.0, 2.0, 3.0])
    assert unequal is not None and unequal.guided and len(unequal.rows) == 4


def test_the_guide_makes_losses_more_equal() -> None:
    """On linear losses, by its sign: a small step along the guide raises the cosine with equal
    losses.
    """
    draw = np.random.default_rng(2)
    for _ in range(20):
        gradients, losses = draw.standard_normal((4, 30)), draw.uniform(0.5, 3, 4)
        gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)
        found = found_for(gradients, losses, theta=0.0)
        assert found is not None
        row = found.rows[-1] @ gradients
        assert (
            evenness(losses - 1e-3 * gradients @ row)
            > evenness(losses)
            > evenness(losses + 1e-3 * gradients @ row)
        )


def test_the_scale_of_losses_changes_nothing() -> None:
    gradients = np.random.default_rng(3).standard_normal((4, 9)) + 0.5
    first, second = (
        found_for(gradients, [c * f for f in (1.0, 1.5, 0.7, 2.0)], theta=5.0) for c in (1.0, 1e4)
    )
    assert first is not None and second is not None and first.guided == second.guided
    np.testing.assert_allclose(first.shares, second.shares, rtol=1e-9)


def test_a_client_without_a_gradient_is_left_out_and_opposite_gradients_lead_nowhere() -> None:
    gradients = np.random.default_rng(4).standard_normal((3, 9)) + 0.5
    gradients[1] *= 1e-9
    found, without = found_for(gradients, [1.0, 9.0, 2.0]), found_for(gradients[[0, 2]], [1.0, 2.0])
    assert found is not None and without is not None and found.shares[1] == 0
    np.testing.assert_allclose(found.shares[[0, 2]], without.shares)
    assert found_for(np.array([[1.0, 2.0], [-2.0, -4.0]]), [1.0, 1.0]) is None
    for side, leads in (
        (1e-8, False),
        (0.7e-6, False),
        (1.5e-6, True),
        (1e-3, True),
    ):  # a millionth of the gradients' length is nowhere
        assert (found_for(np.array([[1.0, side], [-1.0, side]]), [1.0, 1.0]) is not None) == leads


@contextmanager
def searches() -> Iterator[list[dict[str, Any]]]:
    """Every line search of the runs within, with the losses of every trial."""
    seen: list[dict[str, Any]] = []
    original = FedMDFG.search_rate

    def searched(
        self: FedMDFG, lr: float, same: bool, found: Direction, before: Any, slopes: Any, tried: Any
    ) -> float:
        trials: dict[float, np.ndarray] = {}

        def noted(rate: float, first: bool) -> np.ndarray:
            assert first == (not trials)
            trials[rate] = tried(rate, first)
            return trials[rate]

        rate = original(self, lr, same, found, before, slopes, noted)
        seen.append(
            {
                "lr": lr,
                "same": same,
                "found": found,
                "before": before,
                "slopes": slopes,
                "trials": trials,
                "rate": rate,
            }
        )
        return rate

    with patch.object(FedMDFG, "search_rate", searched):
        yield seen


def accepted(one: dict[str, Any]) -> bool:
    """By the definition, without the method's code."""
    after = one["trials"][one["rate"]]
    cosine = [f.sum() / np.sqrt((f * f).sum() * len(f)) for f in (one["before"], after)]
    return bool(
        (one["before"] - after >= one["rate"] * 1e-4 * one["slopes"]).all()
        and (not one["found"].guided or cosine[1] > cosine[0])
    )


def loss_and_gradient(net: nn.Module, x: Any, y: Any) -> tuple[float, np.ndarray]:
    net.zero_grad()
    logits = net(x)
    loss = -(logits - logits.logsumexp(1, keepdim=True))[torch.arange(len(y)), y].mean()
    loss.backward()
    return float(loss.detach()), torch.cat([p.grad.reshape(-1) for p in net.parameters()]).numpy()


@pytest.mark.parametrize("network", NETWORKS)
def test_rounds_match_a_plain_loop(tmp_path: Path, network: str) -> None:
    """Gradients, memory of losses, history of absent clients, direction and line search in float64,
    with clients coming and going.
    """
    theta, s, lr = 5.0, 2, 0.1
    changes = {
        "models": {"model": NETWORKS[network]},
        "rounds": 4,
        "participation": {"number": 3},
        "training": {"lr": lr, "batch": 5, "lr_decay": 0.8},
    }
    with searches() as seen:
        run = play(FedMDFG(theta=theta, s=s), tmp_path / "run", on=SKEWED, **changes)
    workbench, _ = bench("fedmdfg", on=SKEWED, models={"model": NETWORKS[network]})
    net = net_of(workbench).double().eval()
    usual: dict[str, float] = {}
    joins: dict[str, int] = {}
    last: dict[str, np.ndarray] = {}
    changed = 0
    for number, row in enumerate(run.rounds(), 1):
        net.load_state_dict(dict(shared(run, number - 1)))
        found = {
            name: loss_and_gradient(
                net, at(workbench, name).train.x.double(), at(workbench, name).train.y
            )
            for name in row["joined"]
        }
        worse = 0
        for name, (loss, _) in found.items():
            if name not in usual:
                usual[name], joins[name] = loss, 0
            elif loss <= usual[name]:
                usual[name] = (usual[name] * joins[name] + loss) / (joins[name] + 1)
            else:
                worse += 1
            joins[name] += 1
        past = [g for name, g in last.items() if name not in found]
        changed += bool(past)
        losses, gradients = (
            np.array([f for f, _ in found.values()]),
            np.array([g for _, g in found.values()]),
        )
        d, scale, guided, _ = plain_direction(
            gradients, losses, theta, 0 < worse < len(found), np.array(past)
        )
        one = seen[number - 1]
        assert (one["same"], one["found"].guided) == (not past, guided)
        assert one["found"].scale == pytest.approx(scale, rel=1e-2)
        rates = [
            0.1 * 0.8 ** (number - 1) * 2.0**k
            for k in range(s if not past else 0, -s - 1 - math.floor(math.log2(scale)), -1)
        ]
        assert list(one["trials"]) == pytest.approx(rates[: len(one["trials"])])
        before = torch.cat([p.detach().reshape(-1) for p in net.parameters()]).numpy().copy()
        chosen, totals = None, {}
        for rate in rates:
            nn.utils.vector_to_parameters(torch.from_numpy(before - rate * d), net.parameters())
            after = np.array(
                [
                    loss_and_gradient(
                        net, at(workbench, name).train.x.double(), at(workbench, name).train.y
                    )[0]
                    for name in found
                ]
            )
            np.testing.assert_allclose(one["trials"].get(rate, after), after, rtol=1e-2, atol=1e-4)
            totals[rate] = after.sum()
            cosines = [f.sum() / np.linalg.norm(f) for f in (losses, after)]
            if (losses - after >= rate * 1e-4 * (gradients @ d)).all() and (
                not guided or cosines[1] > cosines[0]
            ):
                chosen = rate
                break
        if chosen is None:
            chosen = next(
                (rate for rate in totals if totals[rate] < losses.sum()),
                min(totals, key=totals.__getitem__),
            )
        assert one["rate"] == pytest.approx(chosen)
        moved = torch.cat(
            [shared(run, number)[name].reshape(-1) for name in dict(net.named_parameters())]
        ).numpy()
        np.testing.assert_allclose(
            moved, before - chosen * d, rtol=0, atol=2e-3 * max(1, np.abs(chosen * d).max())
        )
        norms = np.linalg.norm(gradients, axis=1)
        last = {
            name: g / n * norms.mean() for name, g, n in zip(found, gradients, norms, strict=True)
        }
    memory = load_server(run.store).expected
    assert {name: memory[name][1] for name in memory} == joins
    for name in usual:
        assert memory[name][0] == pytest.approx(usual[name], rel=1e-4)
    assert changed


@pytest.mark.parametrize("network", NETWORKS)
def test_an_accepted_step_raises_no_loss(tmp_path: Path, network: str) -> None:
    with searches() as seen:
        run = play(
            FedMDFG(), tmp_path / "run", models={"model": NETWORKS[network]}, rounds=6, on=SKEWED
        )
    workbench, _ = bench("fedmdfg", on=SKEWED, models={"model": NETWORKS[network]})
    assert sum(map(accepted, seen)) >= 3
    for number, one in enumerate(seen, 1):
        if accepted(one):
            losses = []
            for round in (number - 1, number):
                net = net_of(workbench, shared(run, round)).eval()
                losses.append(
                    [
                        loss_and_gradient(
                            net, at(workbench, name).train.x, at(workbench, name).train.y
                        )[0]
                        for name in run.clients
                    ]
                )
            assert (np.array(losses[1]) <= np.array(losses[0]) + 1e-6).all()
            np.testing.assert_allclose(losses[1], one["trials"][one["rate"]], rtol=1e-5)


def test_quadratic_losses_fall_for_all_until_no_direction_does(tmp_path: Path) -> None:
    """h/2 (w - a)^2 with optima at 1 and 4 from 0: both fall until w is between the two, and there
    it stays.
    """
    h, a = (1.0, 3.0), (1.0, 4.0)
    run = scalar(FedMDFG(theta=90.0), tmp_path / "run", h, a, rounds=40)
    path = [weight(run, round) for round in range(41)]
    for k in range(2):
        losses = [h[k] / 2 * (w - a[k]) ** 2 for w in path]
        assert all(after <= before + 1e-6 for before, after in itertools.pairwise(losses[:4]))
    assert 1 - 1e-3 <= path[-1] <= 4


def test_where_gradients_are_opposite_the_model_stays(tmp_path: Path) -> None:
    run = scalar(FedMDFG(), tmp_path / "run", (1.0, 1.0), (-1.0, 1.0), start=0.0, rounds=2)
    assert weight(run) == 0.0
    # nobody has a gradient
    done = scalar(FedMDFG(), tmp_path / "done", (1.0, 1.0), (2.0, 2.0), start=2.0, rounds=2)
    assert weight(done) == 2.0


def test_regression_finds_the_common_optimum(tmp_path: Path) -> None:
    run = scalar(FedMDFG(theta=90.0), tmp_path / "run", (1.0, 3.0), (2.0, 2.0), rounds=30)
    assert weight(run) == pytest.approx(2.0, abs=1e-3)


def test_a_loss_that_is_not_finite_is_a_bad_trial_and_no_bad_reply(tmp_path: Path) -> None:
    with searches() as seen:
        some = scalar(
            FedMDFG(theta=90.0, s=30),
            tmp_path / "some",
            (1.0, 3.0),
            (2.0, 2.0),
            rounds=1,
            training={"lr": 1e12},
        )
        all_bad = scalar(
            FedMDFG(theta=90.0, s=30),
            tmp_path / "all",
            (1.0, 3.0),
            (2.0, 2.0),
            rounds=1,
            training={"lr": 1e30},
        )
    assert not some.rejected() and not all_bad.rejected()
    first, *_, last = seen[0]["trials"].values()
    assert (
        (first == 1e30).all() and (last < 1e30).all() and seen[0]["rate"] == min(seen[0]["trials"])
    )
    assert (
        all((losses == 1e30).all() for losses in seen[1]["trials"].values())
        and weight(all_bad) == 0
    )  # no step at all


def test_the_direction_is_sent_once_and_then_rates(tmp_path: Path) -> None:
    with searches() as seen:
        run = play(FedMDFG(), tmp_path / "run", rounds=2, on=SKEWED)
    numbers = sum(value.numel() for value in shared(run).values())
    for one, row in zip(seen, run.rounds(), strict=True):
        assert row["bytes_down"] == 4 * (4 * numbers + 4 * numbers + 8 * len(one["trials"]))
        assert row["bytes_up"] == 4 * (4 * numbers + 8 + 8 * len(one["trials"]))


def test_a_client_that_leaves_between_trials_has_the_round_repeated_without_it(
    tmp_path: Path,
) -> None:
    faults = {"script": [{"round": 2, "client": "cy", "kind": "drop", "exchange": 2}]}
    run = play(FedMDFG(), tmp_path / "run", on=SKEWED, faults=faults)
    assert [row["joined"] for row in run.rounds()] == [
        ["ada", "bo", "cy", "di"],
        ["ada", "bo", "di"],
        ["ada", "bo", "cy", "di"],
    ]


def test_what_it_costs(tmp_path: Path) -> None:
    s, rounds = 2, 3
    with searches() as seen:
        passes = passes_of(FedMDFG(s=s), tmp_path / "run", rounds=rounds, on=SKEWED)
    assert passes == {
        "client gradient": 1,
        "client forward": sum(len(one["trials"]) for one in seen) / rounds,
    }
    for one in seen:
        assert len(one["trials"]) <= 2 * s + 1 + math.ceil(math.log2(one["found"].scale))


def test_a_search_that_no_rate_satisfies_takes_all_and_then_the_best() -> None:
    found = Direction(np.eye(1), np.ones(1), scale=5.0, guided=False)
    before, slopes = np.array([1.0, 1.0]), np.array([0.5, 0.5])
    asked: list[float] = []

    def worse(rate: float, first: bool) -> np.ndarray:
        asked.append(rate)
        return np.array([1.5, 1.0 + abs(rate - 0.5)])

    # every total is worse: the least of them
    assert FedMDFG(s=2).search_rate(1.0, True, found, before, slopes, worse) == 0.5
    assert asked == [4.0, 2.0, 1.0, 0.5, 0.25, 0.125, 0.0625]  # down to 2^-2 / 5
    asked.clear()
    assert (
        FedMDFG(s=2).search_rate(1.0, False, found, before, slopes, worse) == 0.5
        and asked[0] == 1.0
    )
    mixed = lambda rate, first: np.array([1.1, 0.8 if rate <= 1 else 2.0])  # noqa: E731
    # the largest with a smaller total
    assert FedMDFG(s=2).search_rate(1.0, True, found, before, slopes, mixed) == 1.0


@pytest.mark.parametrize(("fall", "trials"), [(1.2e-4, 1), (1e-4, 1), (0.8e-4, 3), (-1.0, 3)])
def test_a_step_has_to_reach_a_ten_thousandth_of_what_its_slope_promises(
    fall: float, trials: int
) -> None:
    found, asked = Direction(np.eye(1), np.ones(1), scale=1.0, guided=False), []

    def tried(rate: float, first: bool) -> np.ndarray:
        asked.append((rate, first))
        return np.array([0.0 - fall * rate * 2.0])

    FedMDFG(s=1).search_rate(1.0, True, found, np.zeros(1), np.array([2.0]), tried)
    assert asked == [(2.0, True), (1.0, False), (0.5, False)][:trials]


def test_trials_that_are_all_infinite_leave_the_model_where_it_is() -> None:
    found = Direction(np.eye(1), np.ones(1), scale=1.0, guided=False)
    for worst, rate in ((HUGE, 0.0), (1e20, 0.5)):
        losses = {1.0: HUGE, 0.5: worst}
        search = FedMDFG(s=1).search_rate(
            1.0,
            False,
            found,
            np.ones(1),
            np.ones(1),
            lambda rate, first, losses=losses: np.array([losses[rate]]),
        )
        assert search == rate


def test_the_released_tests_let_losses_grow_a_little() -> None:
    guided = Direction(np.eye(1), np.ones(1), scale=1.0, guided=True)
    before = np.array([1.0, 2.0])
    grown = lambda rate, first: np.array([1.00001, 2.00001]) if rate == 1 else np.array([3.0, 9.0])  # noqa: E731
    assert (
        FedMDFG(s=0, armijo="released").search_rate(
            1.0, False, guided, before, np.array([-0.5, -0.5]), grown
        )
        == 1.0
    )
    rate_of = {}
    for armijo in ("correct", "released"):
        less_even = lambda rate, first: np.array([0.5, 1.9]) if rate == 2 else np.array([0.9, 1.5])  # noqa: E731
        rate_of[armijo] = FedMDFG(s=1, armijo=armijo).search_rate(
            1.0, True, guided, before, np.zeros(2), less_even
        )
    assert rate_of == {
        "correct": 1.0,
        "released": 2.0,
    }  # its old cosine is 1/sqrt(m), which every other exceeds


def test_released_slopes_are_those_of_scaled_gradients_with_the_other_sign(tmp_path: Path) -> None:
    slopes = {}
    for armijo in ("correct", "released"):
        with searches() as seen:
            play(FedMDFG(armijo=armijo), tmp_path / armijo, rounds=1, on=SKEWED)
        slopes[armijo] = seen[0]["slopes"]
    assert (slopes["correct"] > 0).all() and (slopes["released"] < 0).all()
    assert (
        len(
            {
                round(float(r / c), 6)
                for c, r in zip(slopes["correct"], slopes["released"], strict=True)
            }
        )
        > 1
    )


def test_a_client_without_data_answers_zeros() -> None:
    empty = {**sites(), "eve": (np.zeros((1, 1, 8, 8), np.float32), np.zeros(1, np.int64))}
    workbench, method = bench("fedmdfg", on=empty)
    client = at(workbench, "eve")
    with patch.object(
        type(client),
        "train",
        property(lambda self: self._part("train").some(torch.zeros(0, dtype=torch.int64))),
    ):
        up = method.client(client, Down(model=workbench.initial("model")))
        assert up.loss == 0 and not up.gradient.flat().any()


def test_the_memory_of_losses() -> None:
    method = FedMDFG()
    state = State(expected=PerClient())
    forced = []
    for losses in ([2.0, 2.0], [1.0, 4.0], [1.0, 1.0], [9.0, 9.0]):
        state, force = method.with_usual_losses(state, replies(None, loss=losses))
        forced.append(force)
    assert forced == [False, True, False, False]  # one of two is worse off; in the end all are
    assert state.expected["0"] == [(1.5 * 2 + 1.0) / 3, 4] and state.expected["1"] == [
        (2.0 * 2 + 1.0) / 3,
        4,
    ]


def test_what_is_served(tmp_path: Path) -> None:
    run = play("fedmdfg", tmp_path / "run", on=SKEWED)
    assert run.models() == ["global"] and run.main_model == "global"
    assert isinstance(server_state(run).model, Tree)


def test_bad_input_is_refused_before_round_1(tmp_path: Path) -> None:
    wanted = eq.Experiment(
        method="fedmdfg", model="cnn", data={"partition": "natural"}, dataset=eq.from_sites(sites())
    )
    assert (
        "batch-norm statistics would stay at their start; choose a model without batch norm"
        in refused(wanted, tmp_path / "run")
    )
    for name, value in (("theta", -1), ("theta", 91), ("s", -1), ("s", 1.5), ("armijo", "wolfe")):
        assert f"method.{name}" in refused(
            lambda name=name, value=value: eq.Experiment(method={"name": "fedmdfg", name: value}),
            tmp_path / "run",
        )


def test_distances_are_those_of_one_step_along_the_clients_own_gradient(tmp_path: Path) -> None:
    """The reference computes gradients by plain autograd in float64."""
    rate = 0.1
    changes = {"rounds": 2, "training": {"lr": rate}, "evaluation": {"distances": True}}
    run = play(FedMDFG(), tmp_path / "run", on=SKEWED, **changes)
    workbench, _ = bench("fedmdfg", on=SKEWED)
    net = net_of(workbench).double().eval()

    def vector(tree: Any) -> np.ndarray:
        net.load_state_dict(dict(tree))
        return torch.cat([p.detach().reshape(-1) for p in net.parameters()]).numpy()

    after = vector(shared(run, 2))
    before = vector(shared(run, 1))
    for name in run.rounds()[1]["joined"]:
        samples = at(workbench, name).train
        _, gradient = loss_and_gradient(net, samples.x.double(), samples.y)
        own = before - rate * gradient
        cosine = own @ after / np.linalg.norm(own) / np.linalg.norm(after)
        expected = {"manhattan": np.abs(own - after).sum(), "angle": math.acos(min(1, cosine))}
        for metric, value in expected.items():
            (row,) = run.table(round=2, client=name, split="parameters", metric=metric)
            assert row["value"] == pytest.approx(value, rel=1e-3)
