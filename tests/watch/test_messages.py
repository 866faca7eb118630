"""The exact wording of what a viewer says about runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.runs import Run
from equipoise.storage.store import RunError, Store
from equipoise.watch.pages import describe
from equipoise.watch.progress import duration, progress_of
from tests.helpers.stores import change, made_up_run


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "1 s"),
        (89.4, "89 s"),
        (90, "2 min"),
        (5340, "89 min"),
        (5400, "1 h 30 min"),
        (172740, "47 h 59 min"),
        (172800, "2 days 0 h"),
        (259200 + 3600 * 5, "3 days 5 h"),
    ],
)
def test_times_are_rounded_to_what_matters(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (RunError("no  such\nrun"), "No such run"),
        (ValueError("odd"), "Odd"),
        (RunError(""), "It cannot be read (RunError: )."),
        (KeyError("x"), "It cannot be read (KeyError: 'x')."),
        (OSError("y" * 300), f"It cannot be read (OSError: {'y' * 200})."),
    ],
)
def test_errors_are_described_in_a_sentence(error: Exception, sentence: str) -> None:
    assert describe(error) == sentence


@pytest.mark.parametrize(
    ("rounds", "finished", "words"),
    [
        (1, True, "finished after 1 round"),
        (2, True, "finished after 2 rounds"),
        (3, False, "stopped after round 2 of 3; `equipoise resume {run}` completes it"),
    ],
)
def test_progress_is_a_sentence(rounds: int, finished: bool, words: str, tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", rounds=rounds, finished=finished)
    assert progress_of(Run(run)).words == words.format(run=run)


def test_the_time_left_follows_from_the_last_ten_rounds(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", rounds=14, finished=False)
    change(run, "update seconds set seconds = 1000 where round <= 3")
    writing = Store(run, writing=True)
    try:
        assert progress_of(Run(run)).words == "in progress: round 13 of 14, about 1 s left"
        writing.db.execute("update seconds set seconds = 100 where round = 4")
        assert progress_of(Run(run)).words == "in progress: round 13 of 14, about 31 s left"
        writing.db.execute("delete from seconds")
        assert progress_of(Run(run)).words == "in progress: round 13 of 14"
    finally:
        writing.close()
