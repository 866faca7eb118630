"""A whole network in one folder: consortium, server, sites, a lead and a member, on loopback."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    def running(self, seconds: float = 120.0) -> Iterator[dict[str, PartyProcess]]:
        """Server and sites for the duration of a block, by name; the server's is "server"."""
        processes: dict[str, PartyProcess] = {}
        try:
            processes["server"] = PartyProcess(self.server)
            processes["server"].wait_until_ready(seconds)
            for name, kit in self.sites.items():
                processes[name] = PartyProcess(kit)
            for process in processes.values():
                process.wait_until_ready(seconds)
            yield processes
        finally:
            for process in reversed(processes.values()):
                process.end()


def build(folder: Path, sites: Sequence[str] = ("north", "south", "west")) -> Consortium:
    """Build a network: a folder for the consortium, and one for each party."""
    port = free_port()
    network = parties.init_network(folder / "consortium", "hearts", f"{HOST}:{port}")

    def enrolled(name: str, kind: Kind, organisation: str) -> Kit:
        home = folder / ("server" if kind == "server" else name)
        requested = parties.request(home, kind, name, organisation, network.name, port)
        signed = parties.approve(network, requested.archive)
        return parties.install(home, signed, network.root)

    return Consortium(
        network=network,
        server=enrolled(HOST, "server", "consortium"),
        sites={name: enrolled(name, "site", name.replace("-", "_")) for name in sites},
        lead=enrolled(LEAD, "lead", "university"),
        member=enrolled(MEMBER, "member", "university"),
    )
