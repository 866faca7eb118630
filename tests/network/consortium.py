"""A whole network in one folder: consortium, server, sites, a lead and a member, on loopback."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from equipoise.transports.nvflare import parties
from equipoise.transports.nvflare.kits import Kind, Kit, open_kit, point_stores
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
        (LEAD, "lead", "university"),
        (MEMBER, "member", "university"),
    ]
    members += [(name, "site", name.replace("-", "_")) for name in sites]
    recording = threading.Lock()

    def enrolled(name: str, kind: Kind, organisation: str) -> Kit:
        home = folder / name
        requested = parties.request(home, kind, name, organisation, network.name)
        with recording:
            signed = parties.approve(network, requested.archive)
        return parties.install(home, signed, network.root)

    def enrolled_server() -> None:
        home = folder / "server"
        requests = parties.request_server(home, HOST, port, "consortium", network.name)
        with recording:
            signed = [parties.approve(network, requested.archive) for requested in requests]
        parties.install_server(home, signed, network.root)

    with ThreadPoolExecutor(3) as pool:
        server = pool.submit(enrolled_server)
        kits = list(pool.map(lambda member: enrolled(*member), members))
        server.result()
    assert len(kits) == 2 + len(sites)
    return opened(folder, sites)


def opened(folder: Path, sites: Sequence[str] = ("north", "south", "west")) -> Consortium:
    """Return the network that `build` made in a folder."""
    return Consortium(
        network=parties.open_network(folder / "consortium"),
        server=open_kit(folder / "server", "server"),
        sites={name: open_kit(folder / name, "site") for name in sites},
        lead=open_kit(folder / LEAD, "lead"),
        member=open_kit(folder / MEMBER, "member"),
    )


def copied(original: Consortium, folder: Path) -> Consortium:
    """Return a copy of a network in another folder and on another port.

    Certificates name the host and not the port, so a copy runs next to the original. It saves the
    seconds that FLARE's commands take.
    """
    shutil.copytree(original.server.folder.parent, folder)
    old = str(original.network.server[1])
    new = str(free_port())
    settings = [folder / "consortium" / parties.PROFILE, *folder.rglob("kit.yaml")]
    settings += folder.rglob("flare/startup/fed_*.json")
    for path in settings:
        path.write_text(path.read_text().replace(old, new))
    copy = opened(folder, list(original.sites))
    point_stores(copy.server)
    return copy


def signed_by(
    network: parties.Network, kit: Kit, begins: timedelta, ends: timedelta
) -> x509.Certificate:
    """Return a certificate for the key of a kit, signed by the consortium, valid at other times."""
    root = network.folder / parties.ROOT
    authority = x509.load_pem_x509_certificate((root / "rootCA.pem").read_bytes())
    key = serialization.load_pem_private_key((root / "rootCA.key").read_bytes(), None)
    assert isinstance(key, rsa.RSAPrivateKey)
    old = x509.load_pem_x509_certificate(kit.certificate.read_bytes())
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        authority.subject, old.subject, old.public_key(), x509.random_serial_number()
    )
    builder = builder.not_valid_before(now + begins).not_valid_after(now + ends)
    return builder.sign(key, hashes.SHA256())


def replace_certificate(kit: Kit, certificate: x509.Certificate) -> None:
    """Put a certificate into a kit."""
    kit.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
