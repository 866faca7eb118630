"""A run killed at any moment and resumed ends as the run that was never killed: same models, same
tables, same files.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from equipoise.runs import Run
from tests.helpers.runs import assert_same, config, everything, killed_at_random, same_run, stopped
from tests.helpers.transports import named

METHODS = [
    "fedavg",
    "scaffold",
    "kdia",
]  # without client state, with it, and with one value per client at the server


@pytest.mark.parametrize(
    ("method", "stride"),
    [
        ("fedavg", 4),
        pytest.param("scaffold", 4, marks=pytest.mark.slow),
        pytest.param("kdia", 4, marks=pytest.mark.slow),
        *(pytest.param(method, 1, marks=pytest.mark.slow) for method in METHODS),
    ],
)
@pytest.mark.thorough
def test_killed_at_the_steps_of_a_commit(
    method: str, stride: int, play: Any, tmp_path: Path
) -> None:
    job = config(tmp_path, method, rounds=2)
    whole = tmp_path / "whole"
    events = play(config=job, out=str(whole))["events"]
    # All of round 1's work and commit, and the first steps of round 2's: later rounds do the same
    # again.
    for moment in range(1, min(events, 45), stride):
        out = tmp_path / f"killed-{moment}"
        assert play(config=job, out=str(out), die_at=moment)["killed"]
        if not (out / "run.db").exists():
            continue
        said = play(resume=True, out=str(out))
        assert not said.get("error"), said
        same_run(whole, out)


@pytest.mark.thorough
def test_killed_while_it_goes_back(play: Any, tmp_path: Path) -> None:
    job = config(tmp_path, "scaffold", rounds=3)
    play(config=job, out=str(tmp_path / "whole"))
    folder = stopped(tmp_path, "scaffold")
    (folder / "files" / "server-r2a0.safetensors").write_bytes(b"")
    for moment in range(1, 18, 4):  # the transaction, the removals, and the first files of round 2
        out = tmp_path / f"killed-{moment}"
        shutil.copytree(folder, out)
        assert play(resume=True, from_round=1, out=str(out), die_at=moment)["killed"]
        said = play(resume=True, out=str(out))
        if "--from-round 1" in said.get("error", ""):
            said = play(resume=True, from_round=1, out=str(out))
        assert not said.get("error"), said
        same_run(tmp_path / "whole", out)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.quick_cases("fedavg")
def test_killed_at_random_moments_again_and_again(
    method: str, workers: int, play: Any, tmp_path: Path
) -> None:
    job = config(tmp_path, method, rounds=6, workers=workers)
    whole, out = tmp_path / "whole", tmp_path / "killed"
    assert not play(config=job | {"workers": 0}, out=str(whole)).get("error")
    draw = random.Random(f"{method} {workers}")
    shortest, longest = (0.05, 0.6) if not workers else (2.0, 6.0)
    killed_at_random(
        play, job, out, lambda: draw.uniform(shortest, longest), 5 if not workers else 2
    )
    same_run(whole, out)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["server", "client"])
def test_twenty_kills_at_any_moment_change_no_bit(where: str, play: Any, tmp_path: Path) -> None:
    """Kills at single events of the store and of the states in turn, and at random times.

    Each is followed by a resume, which the next one kills.
    """
    # So many rounds that an idle machine does not come to the end between few kills.
    job = config(tmp_path, {"name": "fedekd", "proxy_start": "own"}, rounds=60)
    disk = {"disk": str(tmp_path / "disk")} if where == "client" else {}
    whole, out = tmp_path / "whole", tmp_path / "killed"
    events = play(config=job, out=str(whole))["events"]
    draw, kills = random.Random(where), 0
    for number in range(60):
        if kills == 20:
            break
        moment = (
            {"die_after": draw.uniform(0.05, 0.4)}
            if number % 3 == 2
            else {"die_at": draw.randrange(1, events // 40)}
        )
        begun = (out / "run.db").exists()
        said = play(
            **({"resume": True} if begun else {"config": job}), out=str(out), **moment, **disk
        )
        if "is finished" in said.get("error", ""):
            break
        assert said["killed"] or not said.get("error"), said
        kills += said["killed"]
    assert kills >= 15
    said = play(resume=True, out=str(out), **disk)
    assert not said.get("error") or "is finished" in said["error"], said
    killed = Run(out)
    assert killed.store.last_round() == 60
    assert_same(everything(Run(whole)), everything(killed, tmp_path / "disk" if disk else None))
    assert Run(whole).table() == killed.table()
    if disk:
        assert {file.path.name for file in killed.store.current("client").values()} <= named(
            tmp_path / "disk"
        )
        assert not list((out / "files").rglob("client-*"))


@pytest.mark.thorough
def test_killed_at_single_moments_with_states_on_a_second_disk(play: Any, tmp_path: Path) -> None:
    job = config(tmp_path, "scaffold", rounds=2)
    whole = tmp_path / "whole"
    play(config=job, out=str(whole))
    for moment in range(2, 60, 14):
        out, disk = tmp_path / f"killed-{moment}", str(tmp_path / f"disk-{moment}")
        if not play(config=job, out=str(out), disk=disk, die_at=moment)["killed"]:
            break
        again = {"resume": True} if (out / "run.db").exists() else {"config": job}
        said = play(**again, out=str(out), disk=disk)
        assert not said.get("error"), said
        assert_same(everything(Run(whole)), everything(Run(out), Path(disk)))
        assert Run(whole).table() == Run(out).table()
