"""A whole network in one folder: consortium, server, sites, a lead and a member, on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from equipoise.transports.nvflare import parties
from equipoise.transports.nvflare.kits import Kind, Kit
from equipoise.transports.nvflare.processes import PartyProcess, free_port

HOST = "localhost"
LEAD = "lead@example.org"
MEMBER = "member@example.org"


@dataclass(frozen=True)
class Consortium:
    """A network whose kits are installed; see `build`."""

    network: parties.Network
    server: Kit
    sites: Mapping[str, Kit]
    lead: Kit
    member: Kit

    @contextmanager
    def running(
        self,
        data: Mapping[str, Path | str] | None = None,
        schema: Path | None = None,
        seconds: float = 120.0,
    ) -> Iterator[dict[str, PartyProcess]]:
        """Run server and sites for the duration of a block.

        Args:
            data: The data of each site, by name; None to use those of its own settings.
            schema: The file of the agreed schema, of all sites.
            seconds: The time in which each party must be ready.

        Yields:
            The processes by name of the site; that of the server is "server".
        """
        server = PartyProcess(self.server)
        try:
            server.wait_until_ready(seconds=seconds)
            with self.running_sites(data, schema, seconds) as sites:
                yield {"server": server, **sites}
        finally:
            server.end()

    @contextmanager
    def running_sites(
        self,
        data: Mapping[str, Path | str] | None = None,
        schema: Path | None = None,
        seconds: float = 120.0,
    ) -> Iterator[dict[str, PartyProcess]]:
        """Run the sites of a server that runs already; see `running`."""
        processes: dict[str, PartyProcess] = {}
        try:
            for name, kit in self.sites.items():
                own = None if data is None else data[name]
                processes[name] = PartyProcess(kit, parties.start_variables(own, schema))
            for process in processes.values():
                process.wait_until_ready(seconds=seconds)
            yield processes
        finally:
            for process in reversed(processes.values()):
                process.end()


def build(folder: Path, sites: Sequence[str] = ("north", "south", "west")) -> Consortium:
    """Build a network: a folder for the consortium, and one for each party.

    Parties make their keys at the same time, since each of FLARE's commands takes a second or two.
    """
    port = free_port()
    network = parties.init_network(folder / "consortium", "hearts", f"{HOST}:{port}")
    members: list[tuple[str, Kind, str]] = [
        (HOST, "server", "consortium"),
        (LEAD, "lead", "university"),
        (MEMBER, "member", "university"),
    ]
    members += [(name, "site", name.replace("-", "_")) for name in sites]
    recording = threading.Lock()

    def enrolled(name: str, kind: Kind, organisation: str) -> Kit:
        home = folder / ("server" if kind == "server" else name)
        requested = parties.request(home, kind, name, organisation, network.name, port)
        with recording:
            signed = parties.approve(network, requested.archive)
        return parties.install(home, signed, network.root)

    with ThreadPoolExecutor(3) as pool:
        kits = list(pool.map(lambda member: enrolled(*member), members))
    server, lead, member, *others = kits
    return Consortium(
        network=network,
        server=server,
        sites={kit.name: kit for kit in others},
        lead=lead,
        member=member,
    )
