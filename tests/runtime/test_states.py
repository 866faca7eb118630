"""Clients' states by name: where they lie, which are kept, and what a server may ask of them that
it does not have.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise import simulate
from equipoise.comparison.entries import open_runs
from equipoise.records import CannotSave, Record, parse
from equipoise.runs import Run, read_result
from equipoise.runs.baseline import check_comparable
from equipoise.runtime.messages import Reply, state_file, state_name
from equipoise.runtime.states import (
    CarriedStates,
    FileStates,
    ServerStates,
    StateMissing,
    States,
)
from equipoise.storage.store import RunError, Store
from equipoise.transports.inprocess import Separated
from equipoise.tree import Tree
from tests.helpers import half_finished
from tests.helpers.runs import assert_same, files_under, played, same_run, settings, sites
from tests.helpers.transports import named, separated, sites_given, stop_after

RECORD = Record(control=Tree({"w": torch.arange(3.0)}, "model"), rounds=2)


@pytest.mark.parametrize("kind", ["site", "server", "carried"])
def test_a_state_is_read_as_it_was_written_or_not_at_all(kind: str, tmp_path: Path) -> None:
    states: States = {
        "site": FileStates(tmp_path / "a"),
        "server": ServerStates(tmp_path / "a"),
        "carried": CarriedStates(),
    }[kind]
    name = state_name("bo", 1, 0, 1)
    kept = states.write(name, RECORD)
    assert kept.name == name
    found = states.read(name, kept.digest)
    assert torch.equal(found["control"]["w"], torch.arange(3.0)) and found["rounds"] == 2
    assert states.write(name, RECORD) == kept, "the same name is the same bits"
    with pytest.raises(StateMissing, match=f"state {state_name('bo', 2, 0, 1)} is not here"):
        states.read(state_name("bo", 2, 0, 1), kept.digest)
    with pytest.raises(StateMissing, match=f"state {name} is damaged: it is not what was written"):
        states.read(name, "0" * 64)


@pytest.mark.parametrize("kind", [FileStates, ServerStates])
def test_a_state_that_cannot_be_written_is_one_sentence(
    kind: type[FileStates], tmp_path: Path
) -> None:
    name = state_name("bo", 1, 0, 1)
    (tmp_path / name[:2]).write_text("a file where the folder should be")
    with pytest.raises(
        CannotSave,
        match="cannot write .*then resume the run",
    ):
        kind(tmp_path).write(name, RECORD)


def test_all_states_have_one_format(tmp_path: Path) -> None:
    name, carried = state_name("bo", 1, 0, 1), CarriedStates()
    kept = FileStates(tmp_path).write(name, RECORD)
    assert carried.write(name, RECORD) == kept
    data = (tmp_path / state_file(name)).read_bytes()
    assert carried.carried[name] == data and len(data) == kept.bytes and parse(data)["rounds"] == 2


def test_a_site_keeps_what_it_is_told_of_one_client_and_all_of_the_others(tmp_path: Path) -> None:
    site, server = FileStates(tmp_path), ServerStates(tmp_path)
    names = [
        state_name(client, *place)
        for client in ("bo", "cy")
        for place in ((1, 0, 1), (2, 0, 1), (2, 0, 2), (3, 1, 1))
    ]
    for name in names:
        site.write(name, RECORD)
    server.keep("bo", ())  # the store decides
    assert len(named(tmp_path)) == 8
    site.keep("bo", {names[1], names[2]})
    assert files_under(tmp_path) == sorted(state_file(name) for name in (*names[1:3], *names[4:]))
    site.keep("eve", ())
    (tmp_path / state_file(names[1])).unlink()  # by whoever cleans up by hand
    site.keep("bo", {names[2]})
    site.write(names[1], RECORD)
    FileStates(tmp_path / "nowhere").keep("bo", ())
    assert len(named(tmp_path)) == 6


def test_what_a_request_costs_a_site_does_not_grow_with_its_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    for function in ("listdir", "scandir"):
        real = getattr(os, function)
        monkeypatch.setattr(
            os, function, lambda path=".", real=real: (listed.append(str(path)), real(path))[1]
        )
    site, everyone = FileStates(tmp_path), [str(number) for number in range(40)]
    for client in everyone:
        site.write(state_name(client, 1, 0, 1), RECORD)
    site = FileStates(tmp_path)  # another process: it has to look once
    site.keep(everyone[0], {state_name(everyone[0], 1, 0, 1)})
    assert listed
    listed.clear()
    for client in everyone:
        site.write(state_name(client, 2, 0, 1), RECORD)
        site.keep(client, {state_name(client, 2, 0, 1)})
    assert not listed
    assert files_under(tmp_path) == sorted(
        state_file(state_name(client, 2, 0, 1)) for client in everyone
    )


def test_the_names_of_new_folders_are_on_a_sites_disk_before_the_server_hears_of_a_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[list[str]] = []
    monkeypatch.setattr(
        "equipoise.runtime.states.sync",
        lambda paths: synced.append([path.name for path in paths]),
    )
    for _ in range(2):  # a process that was killed may have made the folder and not synced it
        site = FileStates(tmp_path / "own")
        for name in ("01aa-r1a0x1", "01bb-r1a0x1", "02aa-r1a0x1"):
            site.write(name, RECORD)
    assert synced[1::2] == [["01", "own"], ["01"], ["02", "own"]] * 2


@pytest.mark.parametrize(
    "name", ["../../x-r1a0x1", "..-r1a0x1", "/etc-r1a0x1", "", "01aa-r1a0x1/..", "01aa-r1a0x1\n"]
)
def test_a_name_that_no_state_has_leads_nowhere(name: str, tmp_path: Path) -> None:
    for ask in (
        lambda: state_file(name),
        lambda: FileStates(tmp_path).read(name, ""),
        lambda: FileStates(tmp_path).keep("bo", {name}),
    ):
        with pytest.raises(ValueError, match="expected the name of a state such as"):
            ask()


def test_states_that_were_written_beside_the_folders_are_found_and_go(tmp_path: Path) -> None:
    name = state_name("bo", 1, 0, 1)
    kept = FileStates(tmp_path).write(name, RECORD)
    # as until format 4
    (tmp_path / state_file(name)).rename(tmp_path / f"client-{name}.safetensors")
    site = FileStates(tmp_path)
    assert site.read(name, kept.digest)["rounds"] == 2
    site.keep("bo", {name})
    assert files_under(tmp_path) == [f"client-{name}.safetensors"]
    site.keep("bo", ())
    assert files_under(tmp_path) == []


class Watched(Separated):
    """Looks at the clients' disk before and behind every exchange."""

    most = 0

    def exchange(self, requests: Any, deadline: float | None = None) -> list[Reply]:
        found = super().exchange(requests, deadline)
        for request, reply in zip(requests, found, strict=True):
            own = state_name(request.client, 0, 0, 0).partition("-")[0]
            here = {
                path.relative_to(self.disk).as_posix()
                for path in self.disk.rglob(f"client-{own}-*")
            }
            wanted = {
                state_file(name)
                for name in (
                    request.committed,
                    request.state and request.state[0],
                    reply.state and reply.state.name,
                )
                if name
            }
            assert here == wanted, (request.client, request.round, request.exchange)
            assert not request.state or state_file(request.state[0]) in here
            type(self).most = max(self.most, len(here))
        return found


def test_a_client_runtime_keeps_the_last_accepted_and_the_last_committed_state_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watched, "most", 0)
    method = {
        "name": "fedekd",
        "proxy_start": "own",
    }  # two exchanges, each of which changes the state
    faults = {
        "script": [
            {"round": 2, "client": "ada", "kind": "nan"},
            {"round": 3, "client": "bo", "kind": "drop", "exchange": 2},
        ]
    }
    run = played(
        settings(method, rounds=4, faults=faults),
        tmp_path / "run",
        transport=lambda f, w: Watched(f, tmp_path / "disk"),
    )
    same_run(
        played(settings(method, rounds=4, faults=faults), tmp_path / "here"), run, tmp_path / "disk"
    )
    # the committed one, that of the first exchange, and the new one, which no request has named yet
    assert Watched.most == 3


# Going back.


def test_going_back_is_refused_unless_every_client_still_has_its_state(tmp_path: Path) -> None:
    wanted, apart, disk = (
        settings("scaffold", rounds=4, keep=3),
        separated(tmp_path / "disk"),
        tmp_path / "disk",
    )
    stop_after(1, wanted, tmp_path / "run", apart)
    copy = shutil.copytree(disk, tmp_path / "disk after 1")
    stop_after(3, wanted, tmp_path / "run", apart)
    before = {file.path.name for file in Run(tmp_path / "run").store.current("client").values()}
    for _ in range(2):  # to ask costs nothing
        with pytest.raises(
            RunError,
            match=(
                r"cannot go back to round 1: 4 of 4 clients cannot; the first, 'ada': state "
                r".*-r1a0x1 is not here; restore"
            ),
        ):
            simulate.resume(
                tmp_path / "run", experiment=sites_given(wanted), from_round=1, transport=apart
            )
        assert named(disk) >= before and Run(tmp_path / "run").last_round == 3
    shutil.copytree(copy, disk, dirs_exist_ok=True)
    (disk / state_file(state_name("cy", 1, 0, 1))).write_bytes(b"something else")
    with pytest.raises(
        RunError, match="1 of 4 clients cannot; the first, 'cy': state .* is damaged"
    ):
        simulate.resume(
            tmp_path / "run", experiment=sites_given(wanted), from_round=1, transport=apart
        )
    assert named(disk) >= before, "nobody lost its newest state by being asked"
    shutil.copytree(copy, disk, dirs_exist_ok=True)
    resumed = simulate.resume(
        tmp_path / "run", experiment=sites_given(wanted), from_round=1, transport=apart
    )
    same_run(played(wanted, tmp_path / "whole"), resumed, disk)


def test_a_run_that_was_stopped_goes_back_one_round_since_clients_keep_that_state_until_the_next(
    tmp_path: Path,
) -> None:
    wanted, apart = settings("scaffold", rounds=3), separated(tmp_path / "disk")
    stop_after(2, wanted, tmp_path / "run", apart)
    damage_server(tmp_path / "run", 2)
    resumed = simulate.resume(
        tmp_path / "run", experiment=sites_given(wanted), from_round=1, transport=apart
    )
    same_run(played(wanted, tmp_path / "whole"), resumed, tmp_path / "disk")


def damage_server(folder: Path, number: int) -> None:
    (folder / "files" / f"server-r{number}a0.safetensors").write_bytes(b"")


def test_a_run_without_client_states_goes_back_on_any_transport(tmp_path: Path) -> None:
    wanted, apart = settings("fedavg", rounds=3), separated(tmp_path / "disk")
    stop_after(2, wanted, tmp_path / "run", apart)
    damage_server(tmp_path / "run", 2)
    resumed = simulate.resume(
        tmp_path / "run", experiment=sites_given(wanted), from_round=1, transport=apart
    )
    same_run(played(wanted, tmp_path / "whole"), resumed)


# Models.


def test_a_model_that_follows_from_a_state_at_a_client_is_refused_by_saying_where_to_ask(
    tmp_path: Path,
) -> None:
    run = played(
        settings("fedekd", rounds=1), tmp_path / "run", transport=separated(tmp_path / "disk")
    )
    here = played(settings("fedekd", rounds=1), tmp_path / "here")
    with pytest.raises(
        RunError,
        match=(
            "model 'personal' of client 'bo' follows from a state on that client's own disk; "
            "export it there"
        ),
    ):
        run.model("personal", client="bo")
    assert_same(dict(run.model("proxy").state_dict()), dict(here.model("proxy").state_dict()))
    assert here.model("personal", client="bo")


def test_a_method_that_cannot_serve_without_its_state_is_refused_by_the_same_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from equipoise.methods.fedekd import FedeKD

    run = played(
        settings("fedekd", rounds=1), tmp_path / "run", transport=separated(tmp_path / "disk")
    )
    serves = FedeKD.serves
    monkeypatch.setattr(
        FedeKD,
        "serves",
        lambda self, client, down: (len(client.state.get("private")), serves(self, client, down))[
            1
        ],
    )
    with pytest.raises(
        RunError,
        match="model 'proxy' of client 'ada' follows from a state on that client's own disk",
    ):
        run.model("proxy")


# Runs of older versions.


def test_an_older_run_cannot_be_matched_with_a_new_one_and_that_is_what_is_said(
    tmp_path: Path,
) -> None:
    for name, method in (("old", "scaffold"), ("new", "fedavg"), ("alone", "standalone")):
        played(settings(method), tmp_path / name)
    store = Store(tmp_path / "old", writing=True)
    store.db.execute("delete from meta where key = 'fingerprint of'")
    store.set_meta("fingerprint", "0" * 32)
    store.close()
    sentence = (
        rf"{tmp_path / 'old'} was written by an older version and cannot be matched with runs of "
        r"this one; run it again"
    )
    for folders in (("old", "new"), ("new", "old")):
        with pytest.raises(RunError, match=sentence):
            open_runs([tmp_path / name for name in folders])
    with pytest.raises(RunError, match=sentence):
        open_runs([tmp_path / "old"], against=tmp_path / "alone")
    with pytest.raises(RunError, match=sentence):
        read_result(Run(tmp_path / "old"), Run(tmp_path / "alone"))
    with pytest.raises(RunError, match=sentence):
        read_result(Run(tmp_path / "alone"), Run(tmp_path / "old"))
    (entry,) = open_runs([tmp_path / "old"])
    assert entry.run.baseline is None  # a baseline next to it is none of its own
    other = {name: (x + 1, y) for name, (x, y) in sites().items()}
    played(settings("fedavgm"), tmp_path / "other", other)
    with pytest.raises(RunError, match="same settings, other data"):
        open_runs([tmp_path / "new", tmp_path / "other"])


def test_committed_runs_of_format_1_are_old_and_match_each_other() -> None:
    folders = [half_finished.FOLDER / method for method in half_finished.METHODS[:2]]
    first, second = (Run(folder) for folder in folders)
    assert read_result(first).last_round == 2
    check_comparable(first, second)
