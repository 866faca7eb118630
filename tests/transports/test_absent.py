"""Clients that are away: sampled around, left out of evaluations, evaluated later, and replayed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import equipoise as eq
from equipoise import simulate
from equipoise.comparison.formats import explanation
from equipoise.data import Federation
from equipoise.experiment import Experiment
from equipoise.runs import Run, read_result
from equipoise.runs.notes import notes
from equipoise.runtime.messages import Reply, Request
from equipoise.storage.store import RunError
from equipoise.transports.inprocess import InProcess
from tests.helpers.answers import CommandLine, one_sentence
from tests.helpers.runs import assert_same, config, everything, played, settings
from tests.helpers.transports import sites_given

IsAway = Callable[[Request], bool]


class Unreliable(InProcess):
    """A transport whose client bo is away for some requests.

    `unreachable` says when it is known.
    """

    def __init__(
        self, federation: Federation, is_away: IsAway, unreachable: Sequence[int] = ()
    ) -> None:
        super().__init__(federation)
        self.is_away = is_away
        self.unreachable = unreachable
        self.rounds_sampled = 0

    def present(self) -> Sequence[str]:
        self.rounds_sampled += 1
        if self.rounds_sampled in self.unreachable:
            return [client for client in self.federation.ids if client != "bo"]
        return self.federation.ids

    def exchange(self, requests: Sequence[Request], deadline: float | None = None) -> list[Reply]:
        replies = []
        for request in requests:
            if request.client == "bo" and self.is_away(request):
                replies.append(Reply("bo", failure="away"))
            else:
                replies += super().exchange([request], deadline)
        return replies


def away_when(is_away: IsAway, unreachable: Sequence[int] = ()) -> Any:
    def connect(federation: Federation, experiment: Experiment) -> Unreliable:
        return Unreliable(federation, is_away, unreachable)

    return connect


def never(request: Request) -> bool:
    return False


def at_evaluations_of(*rounds: int) -> IsAway:
    return lambda request: request.exchange == 0 and request.round in rounds


def same_results(first: Run, second: Run) -> None:
    assert_same(everything(first), everything(second))
    assert first.table() == second.table()


EVERY_ROUND = {"every": 1}


def test_absent_clients_are_not_sampled_and_the_replay_needs_nothing_else(tmp_path: Path) -> None:
    job = settings("scaffold", rounds=4)
    run = played(job, tmp_path / "run", transport=away_when(never, unreachable=[2, 3]))
    cohorts = [row["cohort"] for row in run.rounds()]
    assert ["bo" in cohort for cohort in cohorts] == [True, False, False, True]
    assert run.rejected() == []
    same_results(run, played(run.replay(), tmp_path / "again"))


@pytest.mark.parametrize("distances", [False, True])
def test_a_client_that_is_away_at_an_evaluation_has_no_values_of_that_round(
    distances: bool, tmp_path: Path
) -> None:
    evaluation = {**EVERY_ROUND, "distances": distances}
    job = settings("fedavg", evaluation=evaluation)
    run = played(job, tmp_path / "run", transport=away_when(at_evaluations_of(2)))
    whole = played(job, tmp_path / "whole")
    expected = [row for row in whole.table() if (row["round"], row["client"]) != (2, "bo")]
    assert run.table() == expected
    assert [(row["round"], row["exchange"], row["client"]) for row in run.rejected()] == [
        (2, 0, "bo")
    ]
    assert_same(everything(run), everything(whole))
    assert read_result(run).rejected == 0 and read_result(run).unevaluated == []
    same_results(run, played(run.replay(), tmp_path / "again"))


def test_a_client_that_fails_in_part_of_an_evaluation_has_none_of_its_values(
    tmp_path: Path,
) -> None:
    def is_away(request: Request) -> bool:
        return (request.round, request.step) == (2, "@measure")

    job = settings("fedavg", evaluation={**EVERY_ROUND, "distances": True})
    run = played(job, tmp_path / "run", transport=away_when(is_away))
    assert {row["client"] for row in run.table(round=2)} == {"ada", "cy", "di"}
    same_results(run, played(run.replay(), tmp_path / "again"))


def test_the_last_evaluation_waits_once_more(tmp_path: Path) -> None:
    evaluations: list[Request] = []

    def is_away(request: Request) -> bool:
        if request.exchange or request.round < 3:
            return False
        evaluations.append(request)
        return len(evaluations) == 1

    run = played(settings("fedavg"), tmp_path / "run", transport=away_when(is_away))
    assert len(evaluations) == 2 and run.rejected() == []
    same_results(run, played(settings("fedavg"), tmp_path / "whole"))


@pytest.mark.parametrize("method", ["fedavg", "ditto", "poise"])
def test_a_client_that_missed_the_last_evaluation_is_evaluated_at_resume(
    method: str, tmp_path: Path
) -> None:
    job = settings(method)
    last = 4 if method == "poise" else 3
    run = played(job, tmp_path / "run", transport=away_when(at_evaluations_of(last)))
    assert run.status == "finished" and "bo" not in run.final() and len(run.final()) == 3
    result = read_result(run)
    assert result.unevaluated == ["bo"]
    assert any("3 of 4 clients evaluated" in note for note in notes(result))
    run.store.close()
    late = simulate.resume(tmp_path / "run", experiment=sites_given(job))
    whole = played(job, tmp_path / "whole")
    assert late.final() == {client: whole.final()[client] for client in late.final()}
    assert list(late.final()) == list(whole.final()) and [*late.counts()] == [*whole.counts()]
    assert sorted(
        map(str, late.columns("client", "model", "split", "metric", "value", phase="final"))
    ) == sorted(
        map(str, whole.columns("client", "model", "split", "metric", "value", phase="final"))
    )
    assert read_result(late).unevaluated == []
    assert_same(everything(late), everything(whole))
    with pytest.raises(RunError, match="is finished"):
        simulate.resume(tmp_path / "run", experiment=sites_given(job))


def test_a_client_that_is_still_away_at_resume_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    job = settings("fedavg")
    away = away_when(at_evaluations_of(3))
    run = played(job, tmp_path / "run", transport=away)
    before = run.store.last_round()
    run.store.close()
    with pytest.raises(RunError, match="'bo' did not evaluate: away; .*resume"):
        simulate.resume(tmp_path / "run", experiment=sites_given(job), transport=away)
    again = Run(tmp_path / "run")
    assert (again.status, again.store.last_round()) == ("finished", before)


def test_a_replay_of_a_missed_end_can_be_completed_as_the_run_was(tmp_path: Path) -> None:
    job = settings("fedavg")
    run = played(job, tmp_path / "run", transport=away_when(at_evaluations_of(3)))
    script = run.replay()
    run.store.close()
    late = simulate.resume(tmp_path / "run", experiment=sites_given(job))
    again = played(script, tmp_path / "again")
    assert read_result(again).unevaluated == ["bo"]
    again.store.close()
    again = simulate.resume(tmp_path / "again", experiment=sites_given(script))
    same_results(late, again)


def test_results_say_how_many_clients_were_evaluated(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    missed = {"round": 2, "exchange": 0, "client": "bo", "kind": "drop"}
    job = config(tmp_path, "fedavg", rounds=2, faults={"script": [missed]})
    compared = eq.compare(job, ["fedavg"], out=tmp_path / "out", jobs=1)
    assert any("3 of 4 clients evaluated" in line for line in explanation(compared))
    equipoise = CommandLine(capfd, monkeypatch)
    assert equipoise("show", compared.entries[0].run.folder, "--json")[0] == 0
    shown = json.loads(equipoise.printed)
    assert any("3 of 4 clients evaluated" in note for note in shown["notes"])


def test_a_run_whose_last_evaluation_all_missed_has_no_final_values(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = []
    for client in ("ada", "bo", "cy", "di"):
        script.append({"round": 2, "client": client, "kind": "drop", "exchange": 0})
    run = played(settings("fedavg", rounds=2, faults={"script": script}), tmp_path / "run")
    assert run.status == "finished" and run.final() == {}
    assert any("0 of 4 clients evaluated" in note for note in notes(read_result(run)))
    run.store.close()
    equipoise = CommandLine(capfd, monkeypatch)
    sentence = one_sentence(equipoise("report", tmp_path / "run", "--out", tmp_path / "page.html"))
    assert "0 of 4 clients evaluated" in sentence and "equipoise resume" in sentence
