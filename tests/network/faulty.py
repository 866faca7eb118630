"""A network whose parties are killed, and what its runs must equal afterwards."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from equipoise import simulate
from equipoise.experiment import experiment
from equipoise.runs import Run
from equipoise.transports.nvflare import parties
from equipoise.transports.nvflare.entry import RUNS, RunEntry, read_entry
from equipoise.transports.nvflare.jobs import Desk, open_desk
from equipoise.transports.nvflare.processes import PartyProcess, marked_processes
from equipoise.transports.nvflare.scientist import NetworkRun, submit, watch_until_end
from equipoise.transports.nvflare.supervisor import last_round
from tests.helpers.runs import same_as_replay
from tests.network.consortium import Consortium
from tests.network.hospitals import states_of

SITES = ("north", "south", "west")
LONGEST = 240.0  # seconds for a run to continue, on a busy machine
JOB_PROCESS = {"server": "runner_process", "site": "worker_process"}
CHILD = "equipoise.site.child"


class Faulty:
    """A network whose parties a test kills and starts again."""

    def __init__(self, consortium: Consortium, data: dict[str, Any]) -> None:
        self.consortium = consortium
        self.data = data
        self.runs = consortium.server.folder / RUNS
        self.processes: dict[str, PartyProcess] = {}
        self.relays: list[Relay] = []
        self._attended = ExitStack()

    def start_server(self) -> None:
        process = PartyProcess(self.consortium.server)
        self.processes["server"] = process
        process.wait_until_ready(seconds=LONGEST)
        self._attended.enter_context(parties.attended(self.consortium.server))

    def start_site(self, name: str) -> None:
        self.processes[name] = PartyProcess(self.consortium.sites[name])

    def start(self) -> None:
        self.start_server()
        for name in self.consortium.sites:
            self.start_site(name)
        for name in self.consortium.sites:
            self.processes[name].wait_until_ready(seconds=LONGEST)

    def end(self) -> None:
        self._attended.close()
        for process in reversed(list(self.processes.values())):
            process.end()
        for relay in self.relays:
            relay.close()

    def relay_to(self, site: str) -> Relay:
        """Let a site reach the server through a relay from now on; it must not run yet."""
        (host, port) = self.consortium.network.server
        relay = Relay((host, port))
        self.relays.append(relay)
        startup = self.consortium.sites[site].folder / "flare" / "startup"
        for path in startup.glob("fed_*.json"):
            path.write_text(path.read_text().replace(str(port), str(relay.port)))
        return relay

    def kill(self, name: str) -> None:
        """Kill all processes of a party at once, as a power cut does."""
        if name == "server":
            self._attended.close()
        for pid in marked_processes(self.processes[name].mark):
            os.kill(pid, signal.SIGKILL)
        self.processes.pop(name).end()

    def kill_one(self, name: str, word: str) -> None:
        """Kill the process of a party whose command line has a word."""
        os.kill(self.process(name, word), signal.SIGKILL)

    def strike(self, moments: random.Random, sites: Sequence[str] = SITES) -> str:
        """Kill a random process or party, and start parties again; return the kind of fault.

        Raises:
            AssertionError: If the process is dead from the last fault.
        """
        kind = moments.choice(["child", "site job", "server job", "site", "server"])
        site = moments.choice(sites)
        if kind == "child":
            self.kill_one(site, CHILD)
        elif kind == "site job":
            self.kill_one(site, JOB_PROCESS["site"])
        elif kind == "server job":
            self.kill_one("server", JOB_PROCESS["server"])
        elif kind == "site":
            self.kill(site)
            self.start_site(site)
        else:
            self.kill("server")
            self.start_server()
        return kind

    def process(self, name: str, word: str) -> int:
        """Return the process of a party whose command line has a word."""
        for pid in marked_processes(self.processes[name].mark):
            with suppress(OSError):
                if word in Path(f"/proc/{pid}/cmdline").read_bytes().decode():
                    return pid
        raise AssertionError(f"{name} has no process with {word}")

    def submit(
        self,
        desk: Desk,
        folder: Path,
        rounds: int,
        method: Any = "scaffold",
        sites: Sequence[str] = SITES,
        **more: Any,
    ) -> NetworkRun:
        config = {"data": self.data, "method": method, "rounds": rounds, "keep": 2, **more}
        return submit(desk, experiment(config), folder, sites)

    def states(self, run: NetworkRun, site: str) -> Path:
        """Return the folder of a site's states of a run."""
        return self.consortium.sites[site].folder / "states" / run.order.run / "states"

    def finished(self, run: NetworkRun, folder: Path) -> Run:
        """Wait for the end of a run, and compare everything with its repetition in process."""
        with open_desk(self.consortium.lead) as desk:
            outcome = watch_until_end(desk, run, lambda progress: None)
        assert outcome.status == "finished", outcome
        there = Run(run.folder)
        here = simulate.run(experiment(there.replay()), folder / "replay", quiet=True)
        same_as_replay(here, there, states_of(self.consortium, there, folder / "states"))
        return there

    def entry(self, run: NetworkRun) -> RunEntry:
        entry = read_entry(self.runs, run.order.run)
        assert entry is not None
        return entry

    def wait_for_round(self, run: NetworkRun, number: int) -> None:
        wait_until(lambda: last_round(self.runs / run.order.run) >= number, f"round {number}")

    def wait_for_more(self, run: NetworkRun, rounds: int = 2) -> None:
        self.wait_for_round(run, last_round(self.runs / run.order.run) + rounds)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + LONGEST
    while not condition():
        assert time.monotonic() < until, f"no {what} within {LONGEST:g} s"
        time.sleep(0.2)


class Relay:
    """A port of its own that passes bytes on to a server, until it is blocked."""

    def __init__(self, server: tuple[str, int]) -> None:
        self.server = server
        self.is_open = True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self.server, timeout=10)
                far.settimeout(None)
            except OSError:
                if self._listener.fileno() < 0:
                    return
                continue
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError), source, target:
            while data := source.recv(2**16):
                while not self.is_open:  # a blocked port loses packets; nobody closes anything
                    time.sleep(0.05)
                target.sendall(data)

    def block(self, seconds: float) -> None:
        """Pass nothing for some seconds."""
        self.is_open = False
        time.sleep(seconds)
        self.is_open = True

    def close(self) -> None:
        self._listener.close()
