"""Who is asked, who answers, and what happens when too few do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from equipoise import simulate
from equipoise.experiment import experiment
from equipoise.records import read
from equipoise.storage.checkpoint import load_server
from equipoise.storage.store import RunError
from equipoise.tree import Tree, combine
from tests.helpers.runs import config, everything, played, settings, sites

EIGHT = {f"c{k}": 12 + k for k in range(8)}


def test_a_number_or_a_fraction_of_the_clients_is_asked_and_every_method_sees_the_same(
    tmp_path: Path,
) -> None:
    runs = [
        played(settings(method, participation=part, rounds=4), tmp_path / name, sites(EIGHT))
        for name, method, part in (
            ("a", "fedavg", {"number": 3}),
            ("b", "scaffold", {"fraction": 0.375}),
        )
    ]
    cohorts = [[row["cohort"] for row in run.rounds()] for run in runs]
    assert cohorts[0] == cohorts[1]
    assert all(len(cohort) == 3 for cohort in cohorts[0])
    assert len({tuple(cohort) for cohort in cohorts[0]}) > 1


def test_unavailable_clients_are_not_asked(tmp_path: Path) -> None:
    run = played(
        settings("fedavg", participation={"availability": 0.5}, rounds=8),
        tmp_path / "run",
        sites(EIGHT),
    )
    sizes = [len(row["cohort"]) for row in run.rounds()]
    assert 0 < sum(sizes) / len(sizes) < 8 and len(set(sizes)) > 1


def test_dropouts_and_stragglers_are_drawn_from_the_seed_and_recorded(tmp_path: Path) -> None:
    faults = {"dropout": 0.3, "stragglers": 0.4, "slowdown": 50.0, "deadline": 0.1}
    first, second = (
        played(settings("fedavg", faults=faults, rounds=5), tmp_path / name, sites(EIGHT))
        for name in "ab"
    )
    reasons = [row["reason"] for row in first.rejected()]
    assert any("dropped out" in reason for reason in reasons) and any(
        "missed the deadline" in reason for reason in reasons
    )
    assert first.rejected() == second.rejected()
    for row in first.rounds():
        assert set(row["joined"]) == set(row["cohort"]) - {
            r["client"]
            for r in first.rejected()
            if r["round"] == row["round"] and r["attempt"] == row["attempt"]
        }
        assert 0 < row["virtual_seconds"] <= 0.1


def test_below_the_floor_a_round_is_repeated_with_a_new_cohort(tmp_path: Path) -> None:
    job = settings(
        "fedavg",
        participation={"number": 4, "floor": 4, "tries": 50},
        faults={"dropout": 0.3},
        rounds=3,
    )
    run = played(job, tmp_path / "run", sites(EIGHT))
    rounds = run.rounds()
    assert all(len(row["joined"]) == 4 for row in rounds)
    assert any(row["attempt"] > 0 for row in rounds)
    # With a floor of all, each attempt that was given up lost somebody, and the one that counted
    # nobody: no refusal is forgotten.
    given_up = {(row["round"], attempt) for row in rounds for attempt in range(row["attempt"])}
    assert {(row["round"], row["attempt"]) for row in run.rejected()} == given_up != set()
    assert {row["reason"] for row in run.rejected()} == {"dropped out"}


def test_after_the_last_try_the_run_stops_with_a_sentence_and_can_be_resumed(
    tmp_path: Path,
) -> None:
    job = config(
        tmp_path, "fedavg", participation={"floor": 4, "tries": 2}, faults={"dropout": 0.99}
    )
    with pytest.raises(
        RunError,
        match=(
            r"round 1 was given up 2 times: .* 4 needed; the first reply that was refused in its "
            r"last attempt, of client .*dropped out"
        ),
    ):
        simulate.run(experiment(job), tmp_path / "run")
    with pytest.raises(RunError, match="round 1 was given up 2 times"):
        simulate.resume(tmp_path / "run")


def test_a_training_that_diverges_at_every_client_says_what_to_change(tmp_path: Path) -> None:
    with pytest.raises(
        RunError,
        match=(
            r"holds values that are not finite; .*lower training.lr or set training.clip=1, and "
            r"run again$"
        ),
    ):
        simulate.run(
            experiment(config(tmp_path, "fedavg", training={"lr": 1e30})), tmp_path / "run"
        )


@pytest.mark.parametrize(
    ("kind", "reason"), [("nan", "not finite"), ("shape", "expected shape"), ("names", "missing")]
)
def test_a_damaged_reply_is_rejected_and_never_reaches_the_model(
    kind: str, reason: str, tmp_path: Path
) -> None:
    run = played(
        settings("fedavg", faults={"corrupt": 0.4, "corruption": kind}, rounds=4), tmp_path / "run"
    )
    assert run.rejected() and all(reason in row["reason"] for row in run.rejected())
    assert all(
        torch.isfinite(value).all()
        for value in everything(run).values()
        if isinstance(value, torch.Tensor)
    )


@pytest.mark.thorough
def test_scaffolds_control_stays_the_mean_of_the_clients_when_a_reply_is_refused(
    tmp_path: Path,
) -> None:
    script = {
        "script": [
            {"round": 1, "client": "cy", "kind": "nan"},
            {"round": 3, "client": "ada", "kind": "nan"},
        ]
    }
    run = played(
        settings("scaffold", faults=script, participation={"number": 3}, rounds=4), tmp_path / "run"
    )
    assert run.rejected()
    state = load_server(run.store)
    own: list[Tree | None] = [
        read(path, lazy=False)["control"] for path, *_ in run.store.current("client").values()
    ]
    mean = combine(own, [1.0] * len(own), divide=len(run.clients))
    for name in state.control:
        # One float32 rounding per round separates the running sum from the mean taken at once.
        torch.testing.assert_close(state.control[name], mean[name], rtol=1e-5, atol=1e-6)
    assert any(float(state.control[name].abs().max()) > 1e-3 for name in state.control)


def test_the_store_keeps_rounds_weights_bytes_seconds(tmp_path: Path) -> None:
    run = played(settings("fedavg", participation={"number": 2}), tmp_path / "run")
    model = run.model("global")
    size = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    assert [row["round"] for row in run.rounds()] == [1, 2, 3]
    for row in run.rounds():
        assert row["bytes_down"] == row["bytes_up"] == 2 * size
        assert row["steps"] > 0
        assert set(row["seconds"]) == {"clients", "transport", "aggregation", "evaluation", "store"}
        shares = {w["client"]: w["share"] for w in run.weights() if w["round"] == row["round"]}
        sizes = dict(zip(run.clients, run.store.meta("sizes")["train"], strict=True))
        total = sum(sizes[client] for client in row["joined"])
        assert shares == pytest.approx({client: sizes[client] / total for client in row["joined"]})


def test_old_checkpoints_are_pruned_and_the_kept_ones_are_whole(tmp_path: Path) -> None:
    run = played(
        settings("scaffold", participation={"number": 2}, rounds=9, keep=3), tmp_path / "run"
    )
    rows = run.store.rows("select kind, key, round from files")
    assert sorted(row["round"] for row in rows if row["kind"] == "server") == [7, 8, 9]
    for client in run.clients:
        versions = sorted(
            row["round"] for row in rows if row["kind"] == "client" and row["key"] == client
        )
        joined = [row["round"] for row in run.rounds() if client in row["joined"]]
        for kept in (7, 8, 9):  # the state that each kept round would find is still there
            before = [number for number in joined if number <= kept]
            assert not before or before[-1] in versions
    run.store.check_files()
