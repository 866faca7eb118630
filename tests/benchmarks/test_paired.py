"""Contenders that take turns: never two at work at once, the same round for all, and no difference
called where there is only noise.
"""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import paired
from measure import fine_cpu_seconds

CONTENDER = """
import sys, time
sys.path.insert(0, {benchmarks!r})
from measure import Meter
meter = Meter()
meter.start()
for number in range({rounds}):
    began = time.monotonic()
    if number == {dies}:
        raise ValueError("no more")
    time.sleep(0.01)
    print({name!r}, number, began, time.monotonic(), file=open({diary!r}, "a"))
    meter.lap(5)
"""


def compete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: int, **dies: int
) -> tuple[paired.Found, list[tuple[str, int, float, float]]]:
    diary = tmp_path / "diary"

    def line_of(
        name: str, workload: str, rounds: int, before: Path | None
    ) -> tuple[list[str], dict[str, str]]:
        words = {
            "benchmarks": paired.__file__.rpartition("/")[0],
            "rounds": rounds,
            "name": name,
            "diary": str(diary),
        }
        return [sys.executable, "-c", CONTENDER.format(**words, dies=dies.get(name, -1))], {}

    monkeypatch.setattr(paired, "line_of", line_of)
    found = paired.compete("W2", ["ours", "control", "bound"], counted, tmp_path / "tree")
    rows = [line.split() for line in diary.read_text().splitlines()]
    return found, [
        (name, int(number), float(began), float(ended)) for name, number, began, ended in rows
    ]


@pytest.mark.thorough
def test_contenders_play_every_round_together_and_never_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, diary = compete(tmp_path, monkeypatch, counted=4)
    assert not found.skipped and {
        name: len(laps) for name, laps in found.laps.items()
    } == dict.fromkeys(("ours", "control", "bound", "before"), 4)
    assert [number for _, number, _, _ in diary] == [
        number for number in range(paired.WARM_UP + 4 + 1) for _ in range(4)
    ]
    assert all(former[3] <= later[2] for former, later in itertools.pairwise(diary))
    assert (
        len({tuple(name for name, number, _, _ in diary if number == round) for round in range(7)})
        > 1
    )  # in changing order
    assert all(
        lap["samples"] == 5 and lap["seconds"] >= 0.01 and lap["cpu_seconds"] > 0
        for laps in found.laps.values()
        for lap in laps
    )


@pytest.mark.thorough
def test_other_processes_of_a_contender_stand_still_too_while_others_play(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waits for the next round may have others that would begin with it."""
    restless = (
        f"import time\nwhile True: print(time.monotonic(), file=open({str(tmp_path / 'stamps')!r}, "
        "'a')); time.sleep(0.001)"
    )
    start = (
        f"import subprocess\nif {{name!r}} == 'bound': subprocess.Popen([sys.executable, '-c', "
        f"{restless!r}])\nmeter = Meter()"
    )
    monkeypatch.setitem(globals(), "CONTENDER", CONTENDER.replace("meter = Meter()", start))
    found, diary = compete(tmp_path, monkeypatch, counted=4)
    assert not found.skipped
    stamps = np.array([float(line) for line in (tmp_path / "stamps").read_text().split()])

    def within(name: str) -> int:
        return sum(
            int(((stamps > began) & (stamps < ended)).sum())
            for who, _, began, ended in diary
            if who == name
        )

    assert within("bound") > 0 and within("ours") == within("control") == within("before") == 0


@pytest.mark.thorough
def test_who_ends_before_its_time_is_left_out_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, diary = compete(tmp_path, monkeypatch, counted=3, bound=3, before=0)
    assert found.skipped == {
        "bound": "ended: ValueError: no more",
        "before": "ended: ValueError: no more",
    }
    assert {name: len(laps) for name, laps in found.laps.items()} == {"ours": 3, "control": 3}
    assert sum(name == "bound" for name, *_ in diary) == 3


def made(**factors: float) -> paired.Found:
    draw = np.random.default_rng(1)
    base = draw.uniform(0.5, 2, 30)  # a machine that is now fast, now slow
    laps = {
        name: [
            {"cpu_seconds": t, "seconds": t, "foreign": 0.0}
            for t in factor * base * draw.uniform(0.97, 1.03, 30)
        ]
        for name, factor in {"ours": 1.0, **factors}.items()
    }
    return paired.Found("W2", laps)


def test_a_difference_is_called_where_it_exceeds_the_noise_only() -> None:
    found = made(control=1.0, bound=0.8, floor=1.004, before=1.3)
    floor = paired.noise(found, "cpu_seconds")
    assert 1 < floor < 1.03
    said = {
        name: paired.verdict(paired.ratios(found, name, "cpu_seconds"), floor)
        for name in ("bound", "floor", "before")
    }
    assert said == {"bound": "less", "floor": "no difference", "before": "more"}
    middle, low, high = paired.ratios(found, "before", "seconds")
    assert low < middle < high and abs(middle - 1.3) < 0.03
    text = "\n".join(paired.table(found, 30))
    assert "| before |" in text and "more" in text and f"Noise floor: {floor:.3f}" in text


def test_without_a_control_nothing_is_a_difference() -> None:
    found = made(bound=0.5)
    assert (
        math.isinf(paired.noise(found, "seconds"))
        and paired.verdict(paired.ratios(found, "bound", "seconds"), math.inf) == "no difference"
    )


def test_the_fine_clock_reads_other_processes_as_they_read_themselves() -> None:
    program = (
        "import time\nfor _ in range(10**6): pass\nprint(time.process_time(), flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        own = float(other.stdout.readline())
        assert own <= fine_cpu_seconds([other.pid]) <= own + 0.1
        other.stdin.close()
    assert fine_cpu_seconds([other.pid]) == 0  # it has ended
