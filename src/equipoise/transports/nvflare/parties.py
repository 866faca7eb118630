"""Actions of the parties of a network, behind the commands network, server, site and member."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from equipoise.data import check
from equipoise.data import sets as data_sets
from equipoise.data.config import DataConfig
from equipoise.data.findings import DataErrors
from equipoise.experiment import ConfigurationError
from equipoise.site.child import LOG as CHILD_LOG
from equipoise.site.site import LOG as SITE_LOG
from equipoise.transports.nvflare import certificates
from equipoise.transports.nvflare.certificates import Certificate, read_request, read_signed
from equipoise.transports.nvflare.connection import check_port, check_server
from equipoise.transports.nvflare.kits import (
    FLARE,
    HOME,
    KINDS,
    REQUEST,
    Kind,
    Kit,
    command_of,
    kit_of,
    lock,
    make_private,
    open_kit,
    read_description,
    replace_startup,
    write_description,
)
from equipoise.transports.nvflare.processes import LOGS, PartyProcess
from equipoise.transports.nvflare.site_settings import (
    DATA,
    SCHEMA,
    site_settings,
    write_settings,
)
from equipoise.transports.nvflare.sweeping import sweep_jobs
from equipoise.validation import safe_yaml
from equipoise.validation.names import quoted

PROFILE = "network.yaml"
PARTIES = "parties.json"
ROOT = "root"
SUPERVISOR = "supervisor"  # the folder of the supervisor's kit in that of the server
SIGNED = "signed"
SWEEP_INTERVAL = 600.0  # seconds
CLOCK = 300.0  # seconds by which the clocks of two parties may differ
_NAMES = {
    "server": (
        r"(?=.{1,64}\Z)([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]*"
        r"[A-Za-z0-9])?",
        "the name of a host, such as fl.example.org",
    ),
    "site": (r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", "1 to 64 letters, digits, - and _"),
    "person": (
        r"(?=.{1,64}\Z)[A-Za-z0-9][A-Za-z0-9._-]*@[A-Za-z0-9.-]+\.[A-Za-z]{2,}",
        "an e-mail address of at most 64 characters",
    ),
    "organisation": (r"[A-Za-z0-9_]{1,64}", "1 to 64 letters, digits and _, no hyphen"),
    "network": (r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", "1 to 64 letters, digits, - and _"),
}
_PARTICIPANTS = {
    "server": "server",
    "supervisor": "admin",
    "site": "client",
    "lead": "admin",
    "member": "admin",
}


def checked_identity(word: str, name: str, option: str) -> str:
    """Return a name that FLARE accepts for a kind of party.

    Args:
        word: "server", "site", "person", "organisation" or "network".
        name: The name.
        option: The option or argument that has it, for the message.

    Raises:
        ConfigurationError: If it has other characters.
    """
    pattern, expected = _NAMES[word]
    if not re.fullmatch(pattern, name):
        raise ConfigurationError(f"{option}: expected {expected}, got {quoted(name)}")
    return name


def address_of(text: str, option: str = "--server") -> tuple[str, int]:
    """Return host and port of HOST:PORT.

    Raises:
        ConfigurationError: If the text has another form.
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigurationError(
            f"{option}: expected HOST:PORT with a port of 1 to 65535, got {quoted(text)}"
        )
    return checked_identity("server", host, option), int(port)


@dataclass(frozen=True)
class Party:
    """A party that the consortium approved.

    Attributes:
        kind: The kind of party.
        name: Its name.
        organisation: Its organisation.
        key: The fingerprint of its public key.
        approved: The time of the approval.
        ends: The time until which its certificate is valid.
    """

    kind: str
    name: str
    organisation: str
    key: str
    approved: str
    ends: str

    def days_left(self) -> float:
        """Return the days until the certificate ends; negative if it has."""
        left = datetime.fromisoformat(self.ends) - datetime.now(UTC)
        return left.total_seconds() / 86400


@dataclass(frozen=True)
class Network:
    """The folder of a consortium.

    Attributes:
        folder: The folder.
        name: The name of the network.
        server: Host and port of the server.
        root: The fingerprint of the root certificate.
    """

    folder: Path
    name: str
    server: tuple[str, int]
    root: str

    @property
    def parties(self) -> list[Party]:
        """The parties that were approved, in this order."""
        path = self.folder / PARTIES
        if not path.exists():
            return []
        return [Party(**values) for values in json.loads(path.read_text())]

    def record(self, party: Party) -> None:
        """Add a party, in place of an earlier one of the same name."""
        others = [known for known in self.parties if known.name != party.name]
        rows = [asdict(known) for known in [*others, party]]
        path = self.folder / PARTIES
        new = path.with_suffix(".new")
        new.write_text(json.dumps(rows, indent=1) + "\n")
        new.chmod(0o600)
        new.replace(path)


def init_network(folder: Path, name: str, server: str) -> Network:
    """Make the folder of a consortium, with the root certificate of its network.

    Args:
        folder: A new or empty folder.
        name: The name of the network.
        server: HOST:PORT at which parties reach the server.

    Raises:
        ConfigurationError: If a name is not valid or the folder has files.
    """
    checked_identity("network", name, "--name")
    host, port = address_of(server)
    _new_folder(folder)
    profile = {
        "name": name,
        "scheme": "grpc",
        "connection_security": "mtls",
        # One port for everything.
        "server": {"host": host, "fed_learn_port": port, "admin_port": port},
    }
    try:
        (folder / PROFILE).write_text(safe_yaml.dumped(profile))
        certificates.make_root(folder / PROFILE, folder / ROOT, folder / HOME)
        make_private(folder)
    except BaseException:
        shutil.rmtree(folder)
        raise
    return open_network(folder)


def open_network(folder: Path) -> Network:
    """Return the consortium of a folder.

    Raises:
        ConfigurationError: If it is not the folder of a consortium.
    """
    path = folder / PROFILE
    if not path.is_file():
        raise ConfigurationError(
            f"{folder}: expected the folder of a consortium, which has a {PROFILE}; "
            "`equipoise network init` makes one, --folder names it"
        )
    values = safe_yaml.read(path)
    root = certificates.read_certificate(folder / ROOT / "rootCA.pem")
    try:
        server = (str(values["server"]["host"]), int(values["server"]["fed_learn_port"]))
        return Network(folder, str(values["name"]), server, root.fingerprint)
    except (KeyError, TypeError, ValueError):
        raise ConfigurationError(
            f"{path}: expected name and server of a network; restore the file from a copy"
        ) from None


def approve(
    network: Network, archive: Path, days: int = certificates.DAYS, replace: bool = False
) -> Path:
    """Sign a request; return the archive to send back.

    Args:
        network: The consortium.
        archive: The request.
        days: The lifetime of the certificate.
        replace: True to accept a new key for a name that has one.

    Raises:
        ConfigurationError: If the request cannot be signed.
    """
    request = read_request(archive)
    check_request(network, request, replace)
    signed = network.folder / SIGNED / f"{request.certificate.name}.signed.zip"
    signed.parent.mkdir(mode=0o700, exist_ok=True)
    certificates.approve(
        archive, network.folder / ROOT, network.folder / PROFILE, days, signed, _home(network)
    )
    now = datetime.now(UTC)
    certificate = request.certificate
    network.record(
        Party(
            kind=certificate.kind,
            name=certificate.name,
            organisation=certificate.organisation,
            key=certificate.fingerprint,
            approved=now.isoformat(timespec="seconds"),
            ends=str(read_signed(signed).certificate.ends),
        )
    )
    return signed


def _home(network: Network) -> Path:
    return network.folder / HOME


def check_request(network: Network, request: certificates.Request, replace: bool = False) -> None:
    """Refuse a request that the consortium must not sign.

    Args:
        network: The consortium.
        request: The request.
        replace: True to accept a new key for a name that has one.

    Raises:
        ConfigurationError: With the reason.
    """
    certificate = request.certificate
    if request.network != network.name:
        raise ConfigurationError(
            f"{request.path}: expected a request for the network {network.name!r}, got one for "
            f"{quoted(request.network)}; ask for a request with --network {network.name}"
        )
    if certificate.kind not in _PARTICIPANTS:
        raise ConfigurationError(
            f"{request.path}: expected a server, supervisor, site, lead or member, got "
            f"{quoted(certificate.kind)}; no other role exists in a network"
        )
    word = certificate.kind if certificate.kind in ("server", "site") else "person"
    checked_identity(word, certificate.name, f"{request.path}: its name")
    checked_identity("organisation", certificate.organisation, f"{request.path}: organisation")
    _check_clock(request.created, f"{request.path}: the clock of the party")
    _check_names(network, certificate, replace)


def _check_names(network: Network, certificate: Certificate, replace: bool) -> None:
    if certificate.kind == "server" and certificate.name != network.server[0]:
        raise ConfigurationError(
            f"expected the server {network.server[0]}, got a request of "
            f"{quoted(certificate.name)}; ask for `equipoise server request "
            f"{network.server[0]}:{network.server[1]}`"
        )
    name = supervisor_name(network.name)
    if certificate.kind == "supervisor" and certificate.name != name:
        raise ConfigurationError(
            f"expected the supervisor {name} of the server, got a request of "
            f"{quoted(certificate.name)}; `equipoise server request` makes the right one"
        )
    for party in network.parties:
        if party.name.casefold() != certificate.name.casefold():
            continue
        is_renewal = party.key == certificate.fingerprint and party.name == certificate.name
        if not is_renewal and not replace:
            raise ConfigurationError(
                f"the name {certificate.name!r} belongs to a {party.kind} of {party.organisation} "
                f"that was approved on {party.approved[:10]}; ask for another name, or add "
                "--replace if that party lost its key"
            )


def _check_clock(moment: datetime | None, clock: str) -> None:
    """Refuse a time in the future: certificates would not be valid yet."""
    if moment is None:
        return
    ahead = (moment - datetime.now(UTC)).total_seconds()
    if ahead > CLOCK:
        raise ConfigurationError(
            f"{clock} is {ahead / 60:.0f} minutes ahead of the clock of this machine; "
            "set both clocks, for example with NTP"
        )


@dataclass(frozen=True)
class Requested:
    """A request that a party made.

    Attributes:
        folder: The folder of the party.
        archive: The request to send to the consortium.
        certificate: Name, organisation, kind and fingerprint of the public key.
    """

    folder: Path
    archive: Path
    certificate: Certificate


def request(
    folder: Path, kind: Kind, name: str, organisation: str, network: str, port: int = 0
) -> Requested:
    """Make the folder of a party, with a private key and a request for a certificate.

    Args:
        folder: A new or empty folder.
        kind: The kind of party.
        name: Its name: that of the site, the host of the server, or an e-mail address.
        organisation: Its organisation.
        network: The name of the network.
        port: The port of a server.

    Raises:
        ConfigurationError: If a name is not valid or the folder has files.
    """
    word = kind if kind in ("server", "site") else "person"
    checked_identity(word, name, "--server" if kind == "server" else "NAME")
    checked_identity("organisation", organisation, "--organisation")
    checked_identity("network", network, "--network")
    _new_folder(folder)
    participant: dict[str, Any] = {
        "name": name,
        "type": _PARTICIPANTS[kind],
        "org": organisation,
    }
    if kind == "server":
        participant |= {"fed_learn_port": port, "admin_port": port}
    if kind in ("supervisor", "lead", "member"):
        participant["role"] = certificates.CERTIFICATE_TYPES[kind]
    description = folder / "participant.yaml"
    try:
        description.write_text(safe_yaml.dumped({"name": network, "participants": [participant]}))
        archive = certificates.request(description, folder / REQUEST, folder / HOME)
        description.unlink()
        write_description(
            folder, {"kind": kind, "name": name, "network": network, "organisation": organisation}
        )
        make_private(folder)
    except BaseException:
        shutil.rmtree(folder)
        raise
    archive = folder / REQUEST / archive.name  # as the user typed the folder
    return Requested(folder, archive, read_request(archive).certificate)


def request_server(
    folder: Path, host: str, port: int, organisation: str, network: str
) -> tuple[Requested, Requested]:
    """Make the folder of a server, and in it that of its supervisor, each with a request.

    Args:
        folder: A new or empty folder.
        host: The host of the server.
        port: Its port.
        organisation: Its organisation.
        network: The name of the network.
    """
    server = request(folder, "server", host, organisation, network, port)
    name = supervisor_name(network)
    supervisor = request(folder / SUPERVISOR, "supervisor", name, organisation, network)
    return server, supervisor


def supervisor_name(network: str) -> str:
    """Return the name of the supervisor of a network; FLARE demands an e-mail address.

    Example:
        >>> supervisor_name("old_hearts")
        'supervisor@old-hearts.internal'
    """
    return f"supervisor@{network.replace('_', '-')}.internal"


def install_server(folder: Path, archives: Collection[Path], fingerprint: str) -> list[Kit]:
    """Install the signed certificates of a server and of its supervisor.

    Args:
        folder: The folder of the server.
        archives: The archives that the consortium sent: one or both.
        fingerprint: The fingerprint of the network's root certificate; see `install`.
    """
    kits = []
    for signed in archives:
        kind = read_signed(signed).certificate.kind
        own = folder / SUPERVISOR if kind == "supervisor" else folder
        kits.append(install(own, signed, fingerprint, ("server", "supervisor")))
    return kits


def install(
    folder: Path | None, signed: Path, fingerprint: str, kinds: Collection[str] = KINDS
) -> Kit:
    """Install a signed certificate into the folder of the party that requested it.

    Args:
        folder: The folder of the party; None for the one in the current folder that has its name.
        signed: The archive that the consortium sent.
        fingerprint: The fingerprint of the network's root certificate, which the party received by
            another way than the archive.
        kinds: The kinds of party that are expected.

    Raises:
        ConfigurationError: If the archive is not of this network or not for this party.
    """
    expected = certificates.written_fingerprint(fingerprint)
    archive = read_signed(signed)
    _check_kind(archive, kinds)
    folder = folder or Path(archive.certificate.name)
    values = read_description(folder)
    _check_requested(archive, values)
    if archive.root != expected:
        raise ConfigurationError(
            f"{signed}: expected a root certificate with the fingerprint {expected}, got "
            f"{archive.root}; ask the consortium by telephone which one is right, and install "
            "nothing before"
        )
    _check_clock(archive.approved, f"{signed}: the clock of the consortium")
    workspace = folder / f"{FLARE}.new"
    shutil.rmtree(workspace, ignore_errors=True)
    try:
        packaged = certificates.package(
            signed, folder / REQUEST, workspace, expected, folder / HOME
        )
        host, port = archive.server
        values |= {"server": f"{host}:{port}", "root": archive.root}
        kit = kit_of(folder, values)
        replace_startup(kit, packaged)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
    write_description(folder, values)
    lock(kit)
    if kit.kind == "site":
        write_settings(kit)
    return open_kit(folder, kit.kind)


def _check_kind(archive: certificates.Signed, kinds: Collection[str]) -> None:
    """Refuse a certificate of another kind than the command is for."""
    kind = archive.certificate.kind
    if kind not in kinds:
        raise ConfigurationError(
            f"{archive.path}: expected the certificate of a {' or '.join(kinds)}, got that of a "
            f"{kind}; `equipoise {command_of(kind)} install` installs it"
        )


def _check_requested(archive: certificates.Signed, values: Mapping[str, str]) -> None:
    """Refuse a certificate of another network or another party than the one that was requested."""
    certificate = archive.certificate
    for word, own, other in (
        ("network", values["network"], archive.network),
        ("kind", values["kind"], certificate.kind),
        ("name", values["name"], certificate.name),
    ):
        if own != other:
            raise ConfigurationError(
                f"{archive.path}: expected the {word} {own!r}, which was requested, got "
                f"{quoted(other)}; ask the consortium for the answer to this request"
            )


@dataclass(frozen=True)
class SiteData:
    """The data of a site, after they were checked.

    Attributes:
        data: The file, folder or data set.
        schema: The file of the agreed schema; None if the site has none.
        samples: The number of samples; None without a schema.
        warnings: Warnings for the owner of the data.
    """

    data: Path
    schema: Path | None
    samples: int | None
    warnings: list[str]


def check_data(kit: Kit, data: Path | str | None = None, schema: Path | None = None) -> SiteData:
    """Check settings and data of a site, before any run.

    Args:
        kit: The kit of the site.
        data: The data of the site, in place of those in its settings.
        schema: The file of the agreed schema, in place of the one in its settings.

    Raises:
        ConfigurationError: If the settings are wrong.
        ValueError: If the data cannot be read by the schema.
    """
    settings = site_settings(kit, os.environ | start_variables(data, schema))
    if settings.schema is None:
        if not settings.data.exists() and settings.data.name not in data_sets.REGISTRY.built_in:
            raise ConfigurationError(
                f"{settings.data}: expected the data of the site; there is no such file or folder"
            )
        return SiteData(settings.data, None, None, [])
    config = DataConfig(name=str(settings.data), apart=True, schema=settings.schema)
    report = check.check_data(config, own_site=kit.name)
    if report.problems:
        raise DataErrors(report.problems)
    samples = sum(site.rows for site in report.sites)
    warnings = list(report.warnings)
    if samples < settings.minimum_rows:
        warnings.append(
            f"the site has {samples} samples and minimum_rows is {settings.minimum_rows}, so it "
            "takes part in no run"
        )
    return SiteData(settings.data, settings.schema, samples, warnings)


def log_files(kit: Kit) -> list[Path]:
    """Return the logs of a site that exist: its own, that of its child, and FLARE's."""
    states = _states_folder(kit)
    paths = [states / SITE_LOG, states / CHILD_LOG]
    paths += [kit.startup / name for name in ("log.txt", "error_log.txt", "audit.log")]
    paths += sorted((kit.folder / LOGS).glob("*.out"))
    return [path for path in paths if path.exists() and path.stat().st_size]


def log_entries(kit: Kit, count: int) -> list[str]:
    """Return the last entries of a site's own log, each as one text of several lines.

    Args:
        kit: The kit of the site.
        count: The number of entries.
    """
    path = _states_folder(kit) / SITE_LOG
    if not path.exists():
        return []
    entries: list[str] = []
    for line in path.read_text(errors="replace").splitlines():
        if line.startswith("    ") and entries:
            entries[-1] += f"\n{line}"
        else:
            entries.append(line)
    return entries[-count:]


def _states_folder(kit: Kit) -> Path:
    """Return the folder of the site's states, also if its settings name no data."""
    return site_settings(kit, {DATA: os.devnull}).folder


def start_variables(data: Path | str | None, schema: Path | None) -> dict[str, str]:
    """Return the environment variables by which a site learns where its data are.

    Args:
        data: The data of the site, in place of those in its settings; a path or a data set.
        schema: The file of the agreed schema, in place of the one in its settings.
    """
    variables = {}
    if data is not None:
        variables[DATA] = str(Path(data).absolute()) if Path(data).exists() else str(data)
    if schema is not None:
        variables[SCHEMA] = str(schema.absolute())
    return variables


def _new_folder(folder: Path) -> None:
    """Make the folder of a party, which must not exist or be empty.

    Raises:
        ConfigurationError: If it has files, or a path that FLARE cannot use.
    """
    if re.search(r"[^A-Za-z0-9@%+=:,./_-]", str(folder.absolute())):
        raise ConfigurationError(
            f"{quoted(str(folder.absolute()))}: expected a path of letters, digits and ._-/@, "
            "since FLARE puts it into commands; choose another folder"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(
            f"{folder}: expected a new or empty folder, got one with files; choose another one"
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def exclude(kit: Kit, site: str, readmit: bool = False) -> list[str]:
    """Keep a site out of a network from the next start of the server, whatever its certificate.

    A network has no list of revoked certificates; this list of FLARE's server takes its part.

    Args:
        kit: The kit of the server.
        site: The name of the site.
        readmit: True to let the site in again.

    Returns:
        All sites that are excluded.
    """
    checked_identity("site", site, "NAME")
    path = kit.startup / "disabled_clients.json"
    names: set[str] = set()
    if path.exists():
        names = set(json.loads(path.read_text())["disabled_clients"])
    names = names - {site} if readmit else names | {site}
    path.write_text(json.dumps({"disabled_clients": sorted(names)}))
    path.chmod(0o600)
    return sorted(names)


def run_party(
    kit: Kit, on_ready: Callable[[], None], variables: Mapping[str, str] | None = None
) -> None:
    """Run a server or a site until Ctrl-C, SIGTERM or `stop`, and end all that it started.

    Args:
        kit: The kit of the party.
        on_ready: Called when the server listens, or the site is registered.
        variables: Further environment variables of its processes.

    Raises:
        ConfigurationError: If the party cannot be started, or ends by itself.
    """
    if kit.kind == "server":
        check_port(kit)
    else:
        check_server(kit)
    with _signals() as stopped:
        process = PartyProcess(kit, variables)
        try:
            process.wait_until_ready(stopped)
            if not stopped.is_set():
                on_ready()
            with attended(kit):
                _watch(kit, process, stopped)
        finally:
            process.end()


def _watch(kit: Kit, process: PartyProcess, stopped: threading.Event) -> None:
    """Wait until a party is stopped, and sweep what old jobs have left."""
    due = 0.0
    while not stopped.wait(0.5):
        process.check_alive()
        if time.monotonic() > due:
            sweep_jobs(kit)
            due = time.monotonic() + SWEEP_INTERVAL


@contextmanager
def attended(kit: Kit) -> Iterator[None]:
    """Let the supervisor of a server attend to its runs, for the duration of a block.

    Args:
        kit: The kit of a party. Only a server whose supervisor has a certificate has one.
    """
    if kit.kind != "server" or not has_supervisor(kit):
        yield
        return
    from equipoise.transports.nvflare.supervision import Supervision

    supervision = Supervision(kit, open_kit(kit.folder / SUPERVISOR, "supervisor"))
    supervision.start()
    try:
        yield
    finally:
        supervision.end()


def has_supervisor(kit: Kit) -> bool:
    """Return True if the supervisor of a server has a certificate."""
    return (kit.folder / SUPERVISOR / FLARE / "startup").is_dir()


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """Let Ctrl-C and SIGTERM set an event, for the duration of a block."""
    stopped = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stopped.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
