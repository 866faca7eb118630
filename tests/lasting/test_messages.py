"""Exact wording of errors about runs on disk; other tests check only what carries information."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.experiment import Experiment
from equipoise.session import configuration
from equipoise.storage.store import RunError, Store


def open_run(folder: Path) -> Store:
    return Store.create(folder, "rounds: 1\n", {})


def nothing_there(folder: Path) -> None:
    Store(folder)


def created_twice(folder: Path) -> None:
    open_run(folder).close()
    Store.create(folder, "rounds: 1\n", {})


def created_over_a_finished_one(folder: Path) -> None:
    store = Store.create(folder, configuration(Experiment()), {})
    store.set_meta("status", "finished")
    store.close()
    Store.create(folder, "rounds: 2\n", {})


def opened_twice(folder: Path) -> None:
    first = open_run(folder)
    try:
        Store(folder, writing=True)
    finally:
        first.close()


def back_to_no_checkpoint(folder: Path) -> None:
    store = open_run(folder)
    try:
        store.go_back(7)
    finally:
        store.close()


def foreign_name(folder: Path) -> None:
    store = open_run(folder)
    try:
        store.file("../../.profile")
    finally:
        store.close()


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        (
            nothing_there,
            "RUN is not a run: it has no run.db; "
            "give the folder that `equipoise run` named at its end",
        ),
        (
            created_twice,
            "RUN holds a run already; resume it with `equipoise resume RUN` "
            "(add --network KIT if its data are at sites), choose another --out, "
            "or remove it with --overwrite",
        ),
        (
            created_over_a_finished_one,
            "RUN holds a run already; it is finished, so choose another folder with --out, "
            "or replace it with --overwrite",
        ),
        (
            opened_twice,
            "RUN is being run by another process; wait for it to end, or stop it",
        ),
        (
            back_to_no_checkpoint,
            "RUN holds no checkpoint of round 7, but of none; choose one of these",
        ),
        (
            foreign_name,
            "RUN is damaged or not a run of Equipoise: its database names a file "
            "'../../.profile', which no run writes; restore it from a copy or run again",
        ),
    ],
)
def test_errors_about_a_run_say_what_to_do(
    cause: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(RunError) as error:
        cause(folder)
    assert str(error.value) == message.replace("RUN", str(folder))
