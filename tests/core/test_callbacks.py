"""Callbacks hear of a run's progress and may end it early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import equipoise as eq
from equipoise.callbacks import RunStart
from equipoise.storage.store import RunError
from tests.helpers.callbacks import Calling


def experiment(rounds: int = 6, **more: Any) -> eq.Experiment:
    settings: dict[str, Any] = {"data": {"name": "digits", "clients": 3}, "training": {"steps": 2}}
    return eq.Experiment(**{**settings, "rounds": rounds, "workers": 0, **more})


def stop_after(number: int) -> Calling:
    return Calling(on_round=lambda record: record.round == number)


def test_every_event_is_heard_in_order(tmp_path: Path) -> None:
    heard: list[Any] = []
    callback = Calling(
        on_start=lambda start: heard.append(("start", start.first, start.rounds)),
        on_client=lambda progress: heard.append((progress.step, progress.done, progress.total)),
        on_round=lambda record: heard.append(("round", record.round)),
        on_end=lambda folder, error: heard.append(("end", folder, error)),
    )
    eq.run(experiment(rounds=2), tmp_path / "run", callback)
    assert heard[0] == ("start", 1, 2) and heard[-1] == ("end", tmp_path / "run", None)
    assert [event for event in heard if event[0] == "round"] == [("round", 1), ("round", 2)]
    assert ("client", 3, 3) in heard


def test_all_of_several_callbacks_are_told_even_if_the_first_stops(tmp_path: Path) -> None:
    seen: list[int] = []
    run = eq.run(
        experiment(),
        tmp_path / "run",
        [stop_after(2), Calling(on_round=lambda record: seen.append(record.round))],
    )
    assert run.last_round == 2 and seen[:2] == [1, 2]


@pytest.mark.parametrize("every", [1, 4])
def test_a_run_that_was_stopped_is_finished_and_evaluated_as_it_ended(
    every: int, tmp_path: Path
) -> None:
    """Also if the round in which it was stopped would not have been evaluated."""
    stopped = eq.run(experiment(evaluation={"every": every}), tmp_path / "stopped", stop_after(3))
    whole = eq.run(experiment(rounds=3), tmp_path / "whole")
    assert (stopped.status, stopped.last_round, stopped.stopped_early) == ("finished", 3, True)
    assert stopped.final() == whole.final() and not whole.stopped_early
    with pytest.raises(RunError, match="is finished"):
        eq.resume(stopped.folder)


def test_stopping_in_the_last_round_changes_nothing(tmp_path: Path) -> None:
    stopped = eq.run(experiment(rounds=2), tmp_path / "stopped", stop_after(2))
    whole = eq.run(experiment(rounds=2), tmp_path / "whole")
    assert stopped.table() == whole.table() and not stopped.stopped_early


def test_a_method_with_an_end_of_its_own_still_has_it(tmp_path: Path) -> None:
    run = eq.run(experiment(method="finetune"), tmp_path / "run", stop_after(2))
    assert run.last_round == 2 and run.finish() and run.status == "finished"
    assert set(run.final()) == {"0", "1", "2"}


def test_a_callback_that_fails_ends_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    ends: list[Any] = []

    def fail(record: Any) -> None:
        if record.round == 2:
            raise RuntimeError("no space on the dashboard")

    callback = Calling(on_round=fail, on_end=lambda folder, error: ends.append(error))
    with pytest.raises(RuntimeError, match="dashboard"):
        eq.run(experiment(rounds=3), tmp_path / "run", callback)
    assert len(ends) == 1 and isinstance(ends[0], RuntimeError)
    resumed = eq.resume(tmp_path / "run")
    assert resumed.final() == eq.run(experiment(rounds=3), tmp_path / "whole").final()


def test_something_else_than_a_callback_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"equipoise\.Callback, got function"):
        eq.run(experiment(), tmp_path / "run", [lambda record: None])  # type: ignore[list-item]
    assert not (tmp_path / "run").exists()


def validation_losses(run: eq.Run) -> list[float]:
    by_round: dict[int, list[float]] = {}
    for row in run.table(split="validation", metric="loss", phase="received"):
        by_round.setdefault(row["round"], []).append(row["value"])
    return [sum(values) / len(values) for values in by_round.values()]


def expected_stop(losses: list[float], patience: int, min_delta: float) -> int:
    """The round after which a plain reading of the rule stops; the last one if it never does."""
    for last in range(1, len(losses) + 1):
        best = 0
        for number in range(1, last):
            if losses[number] < losses[best] - min_delta:
                best = number
        if last - 1 - best >= patience:
            return last
    return len(losses)


@pytest.mark.parametrize(("patience", "min_delta"), [(1, 0.0), (2, 0.05), (3, 0.2)])
def test_early_stopping_follows_validation_data(
    patience: int, min_delta: float, tmp_path: Path
) -> None:
    settings = {"training": {"steps": 4, "lr": 0.8}}
    whole = eq.run(experiment(rounds=12, **settings), tmp_path / "whole")
    stopping = eq.EarlyStopping(patience=patience, min_delta=min_delta)
    run = eq.run(experiment(rounds=12, **settings), tmp_path / "run", stopping)
    assert run.last_round == expected_stop(validation_losses(whole), patience, min_delta)


def test_early_stopping_sees_what_was_computed_before_a_kill(tmp_path: Path) -> None:
    """Also if the run was killed right after the round that ends it."""
    stopping = {"patience": 2, "min_delta": 0.5}
    whole = eq.run(experiment(rounds=12), tmp_path / "whole", eq.EarlyStopping(**stopping))
    last = whole.last_round
    assert 2 < last < 12
    for killed_in in (1, last - 1, last):
        folder = tmp_path / f"killed-{killed_in}"
        with pytest.raises(ZeroDivisionError):
            eq.run(
                experiment(rounds=12),
                folder,
                Calling(on_round=lambda record, at=killed_in: record.round == at and 1 / 0),
            )
        resumed = eq.resume(folder, eq.EarlyStopping(**stopping))
        assert resumed.last_round == last and resumed.final() == whole.final()


def test_early_stopping_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"validation data, but round 1 .*evaluation\.splits"):
        eq.run(experiment(evaluation={"splits": ["test"]}), tmp_path / "run", eq.EarlyStopping())
    for wrong in ({"patience": 0}, {"min_delta": -1.0}, {"metric": "acuracy"}):
        with pytest.raises(ValueError):
            eq.EarlyStopping(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "held_out"),
    [({"name": "poise"}, 1), ({"name": "finetune", "validation": True}, 0)],
)
def test_early_stopping_refuses_a_method_that_trains_on_validation_data(
    method: dict[str, Any], held_out: int, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"trains on them after round {held_out} of 3"):
        eq.run(experiment(method=method, rounds=3), tmp_path / "run", eq.EarlyStopping())
    for name, clean in (("a", {"name": "poise", "fold": False}), ("b", {"name": "finetune"})):
        eq.run(experiment(method=clean, rounds=1), tmp_path / name, eq.EarlyStopping())


def test_a_start_names_the_folder_and_the_first_round(tmp_path: Path) -> None:
    starts: list[RunStart] = []
    with pytest.raises(ZeroDivisionError):
        eq.run(
            experiment(rounds=3),
            tmp_path / "run",
            Calling(on_round=lambda record: record.round == 2 and 1 / 0),
        )
    eq.resume(tmp_path / "run", Calling(on_start=starts.append))
    assert starts == [RunStart(tmp_path / "run", 3, 3)]
