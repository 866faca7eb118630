"""Kits of the parties of a network: opened, locked, and compared with the locks.

A party has one folder. It holds the private key, the kit that FLARE runs, the settings of the
party, and everything that is written while it takes part.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast

from equipoise.experiment import ConfigurationError
from equipoise.transports.nvflare.certificates import (
    CERTIFICATE_TYPES,
    check_installed,
    read_certificate,
)
from equipoise.validation import safe_yaml
from equipoise.validation.names import quoted

Kind = Literal["server", "supervisor", "site", "lead", "member"]
KINDS: tuple[Kind, ...] = ("server", "supervisor", "site", "lead", "member")
SUPERVISOR_ROLE = CERTIFICATE_TYPES["supervisor"]
DESCRIPTION = "kit.yaml"
REQUEST = "request"
FLARE = "flare"
HOME = "home"  # FLARE's commands write records to the home folder

SOON = 14  # days before the end of a certificate from which its owner is warned
_RENEWAL = (
    "to renew it, send the request to the consortium again, which runs `equipoise network "
    "approve`, and install the answer"
)

CONTROLLER = "equipoise.transports.nvflare.controller.RunController"
EXECUTOR = "equipoise.transports.nvflare.executor.SiteExecutor"
# Seconds after which FLARE ends the thread that waits for the answer to a poll. With its default
# of 60 s, a site that polls 20 times a second has hundreds of threads.
RETRY_TIMEOUT = 2.0

# Nobody may ship code, read files, copy jobs of others or operate a party from afar. A lead
# submits runs and manages those of its own; a member looks on. The supervisor, which runs on the
# machine of the server, continues the runs of all leads and fetches none.
_NOTHING = {
    "submit_job": "none",
    "clone_job": "none",
    "manage_job": "none",
    "download_job": "none",
    "view": "none",
    "operate": "none",
    "shell_commands": "none",
    "byoc": "none",
    "server-predeployed-flwr": "none",
    # Single commands of the categories above: texts of errors stay where they arose, and how much
    # a party logs is up to it.
    "show_errors": "none",
    "reset_errors": "none",
    "configure_job_log": "none",
}
_LEAD = _NOTHING | {
    "submit_job": "any",
    "manage_job": "n:submitter",
    "download_job": "n:submitter",
    "view": "any",
}
_SUPERVISOR = _NOTHING | {"submit_job": "any", "manage_job": "any", "view": "any"}
AUTHORIZATION = {
    "format_version": "1.0",
    "permissions": {
        "project_admin": _NOTHING,
        SUPERVISOR_ROLE: _SUPERVISOR,
        "lead": _LEAD,
        "member": _NOTHING | {"view": "any"},
    },
}


@dataclass(frozen=True)
class Kit:
    """The kit of a party.

    Attributes:
        folder: The folder of the party.
        kind: The kind of party.
        name: The name in the certificate: that of the site, the host of the server, or the e-mail
            address of a person.
        network: The name of the network.
        server: Host and port of the server.
        organisation: The organisation of the party.
        root: The fingerprint of the network's root certificate.
    """

    folder: Path
    kind: Kind
    name: str
    network: str
    server: tuple[str, int]
    organisation: str
    root: str

    @property
    def startup(self) -> Path:
        """The kit that FLARE runs: the folder with startup/, local/ and transfer/."""
        return self.folder / FLARE

    @property
    def certificate(self) -> Path:
        """The file of the party's certificate."""
        name = "server.crt" if self.kind == "server" else "client.crt"
        return self.startup / "startup" / name


def open_kit(folder: Path, kind: str | Collection[str]) -> Kit:
    """Return the kit in a party's folder.

    Args:
        folder: The folder of the party.
        kind: The kind of party that is expected, or several.

    Raises:
        ConfigurationError: If the folder has no installed kit of this kind.
    """
    check_installed()
    kinds = [kind] if isinstance(kind, str) else list(kind)
    values = read_description(folder)
    if values["kind"] not in kinds:
        raise ConfigurationError(
            f"{folder}: expected the kit of a {' or '.join(kinds)}, got that of a "
            f"{values['kind']}; name the folder of the {kinds[0]}"
        )
    if "root" not in values or not (folder / FLARE / "startup").is_dir():
        raise ConfigurationError(
            f"{folder}: the certificate has been requested, but is not installed yet; "
            f"`equipoise {command_of(values['kind'])} install SIGNED.zip --fingerprint F`"
        )
    kit = kit_of(folder, values)
    _check_private(kit)
    _check_certificate(kit, datetime.now(UTC))
    return kit


def kit_of(folder: Path, values: Mapping[str, str]) -> Kit:
    """Return the kit of a folder, whose description has been read."""
    host, _, port = values["server"].rpartition(":")
    return Kit(
        folder=folder.absolute(),
        kind=cast(Kind, values["kind"]),
        name=values["name"],
        network=values["network"],
        server=(host, int(port)),
        organisation=values["organisation"],
        root=values["root"],
    )


def _check_private(kit: Kit) -> None:
    """Refuse a kit whose private key others can read."""
    keys = [*kit.folder.glob(f"{REQUEST}/*.key"), *kit.startup.glob("startup/*.key")]
    # Nobody else can enter the folder, so it protects everything in it.
    for path in [kit.folder, *keys]:
        mode = path.stat().st_mode
        if mode & 0o077:
            word = "entered" if path.is_dir() else "read"
            raise ConfigurationError(
                f"{path}: expected a kit that only its owner can read, got one that others have "
                f"rights on (mode {mode & 0o777:o}), so its key may have been {word}; "
                f"`chmod -R go-rwx {kit.folder}`, and ask for a new certificate if others use "
                "this machine"
            )


def _check_certificate(kit: Kit, now: datetime) -> None:
    """Refuse a certificate that has ended, is not valid yet, or is not the one of this kit."""
    certificate = read_certificate(kit.certificate)
    assert certificate.begins is not None and certificate.ends is not None
    if certificate.days_left(now) < 0:
        raise ConfigurationError(
            f"{kit.folder}: the certificate of {kit.name} ended on {certificate.ends:%Y-%m-%d}; "
            f"{_RENEWAL}"
        )
    if certificate.begins > now:
        ahead = (certificate.begins - now).total_seconds() / 60
        raise ConfigurationError(
            f"{kit.folder}: the certificate of {kit.name} begins in {ahead:.0f} minutes, so the "
            "clock of this machine or of the consortium is wrong; set both clocks, for example "
            "with NTP"
        )
    if (certificate.name, certificate.kind) != (kit.name, kit.kind):
        raise ConfigurationError(
            f"{kit.folder}: expected the certificate of the {kit.kind} {kit.name}, got that of "
            f"the {certificate.kind} {certificate.name}; install the kit again"
        )


def kit_warnings(kit: Kit, now: datetime | None = None) -> list[str]:
    """Return warnings about a kit that can be used: a certificate that ends soon.

    Args:
        kit: The kit.
        now: The time; that of this machine by default.
    """
    certificate = read_certificate(kit.certificate)
    assert certificate.ends is not None
    days = certificate.days_left(now or datetime.now(UTC))
    if days > SOON:
        return []
    left = "1 day" if int(days) == 1 else f"{int(days)} days"
    return [
        f"the certificate of {kit.name} ends in {left}, on {certificate.ends:%Y-%m-%d}; {_RENEWAL}"
    ]


def command_of(kind: str) -> str:
    """Return the command of a kind of party: persons share one."""
    if kind == "supervisor":
        return "server"
    return kind if kind in ("server", "site") else "member"


def read_description(folder: Path) -> dict[str, str]:
    """Return the description in the folder of a party.

    Raises:
        ConfigurationError: If it is not the folder of a party.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        raise ConfigurationError(
            f"{folder}: expected the folder of a party of a network, which has a {DESCRIPTION}; "
            "`equipoise site request` makes one"
        )
    values = safe_yaml.read(path)
    required = {"kind", "name", "network", "organisation"}
    is_whole = isinstance(values, dict) and required <= values.keys()
    if not is_whole or values["kind"] not in KINDS:
        raise ConfigurationError(
            f"{path}: expected kind, name, network and organisation of a party, got "
            f"{quoted(values)}; restore the file from a copy"
        )
    return {key: str(value) for key, value in values.items()}


def write_description(folder: Path, values: Mapping[str, str]) -> None:
    """Write the description of a party into its folder."""
    path = folder / DESCRIPTION
    path.write_text(safe_yaml.dumped(dict(values)))
    path.chmod(0o600)


def lock(kit: Kit) -> None:
    """Write FLARE's settings so that it runs our classes only and nobody controls it from afar.

    FLARE's own defaults are removed, since it would use them if a locked file were missing. So are
    its scripts, since `equipoise site start` and `server start` start a party.
    """
    local = kit.startup / "local"
    for path in [*local.glob("*.default"), *local.glob("*.sample")]:
        path.unlink()
    for path in (kit.startup / "startup").glob("*.sh"):
        path.unlink()
    (kit.startup / "readme.txt").unlink(missing_ok=True)  # describes the scripts
    for name, content in locked_files(kit).items():
        (local / name).write_text(json.dumps(content, indent=2) + "\n")
    make_private(kit.folder)


def locked_files(kit: Kit) -> dict[str, Any]:
    """Return the content of FLARE's files of settings in a locked kit, by name."""
    if kit.kind == "server":
        return {
            "resources.json": _server_resources(kit),
            "authorization.json": AUTHORIZATION,
            "comm_config.json": {"streaming_retry_timeout": RETRY_TIMEOUT},
            "log_config.json": _LOGGING,
        }
    if kit.kind == "site":
        return {
            "resources.json": _SITE_RESOURCES,
            "authorization.json": AUTHORIZATION,
            "comm_config.json": {"streaming_retry_timeout": RETRY_TIMEOUT},
            "log_config.json": _LOGGING,
        }
    return {"resources.json": _PERSON_RESOURCES}


_POLICY = {
    "format_version": 2,
    "class_list_enforcement_mode": "enforce",
    "class_allow_list": [CONTROLLER, EXECUTOR],
    "allow_log_streaming": False,
}
_SITE_RESOURCES = _POLICY | {
    "client": {"retry_timeout": 30, "compression": "Gzip"},
    "components": [
        {
            "id": "resource_manager",
            "path": "nvflare.app_common.resource_managers.gpu_resource_manager.GPUResourceManager",
            "args": {"num_of_gpus": 0, "mem_per_gpu_in_GiB": 0, "expiration_period": 300},
        },
        {
            "id": "resource_consumer",
            "path": "nvflare.app_common.resource_consumers.gpu_resource_consumer."
            "GPUResourceConsumer",
            "args": {},
        },
        {
            "id": "process_launcher",
            "path": "nvflare.app_common.job_launcher.client_process_launcher."
            "ClientProcessJobLauncher",
            "args": {},
        },
    ],
}
_PERSON_RESOURCES = {
    "format_version": 1,
    "admin": {
        "idle_timeout": 900.0,
        "login_timeout": 10.0,
        "with_debug": False,
        "authenticate_msg_timeout": 2.0,
        "prompt": "> ",
    },
}


def _server_resources(kit: Kit) -> dict[str, Any]:
    """Return the settings of a server, whose stores lie inside its kit; FLARE's are in /tmp."""
    storage = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    snapshots = {"root_dir": str(kit.startup / "snapshots"), "uri_root": "/"}
    return _POLICY | {
        "servers": [
            {
                "admin_storage": "transfer",
                "max_num_clients": 100,
                "heart_beat_timeout": 600,
                "download_job_url": "http://download.server.com/",
                "admin_timeout": 10.0,
            }
        ],
        "snapshot_persistor": {
            "path": "nvflare.app_common.state_persistors.storage_state_persistor."
            "StorageStatePersistor",
            "args": {"uri_root": "/", "storage": {"path": storage, "args": snapshots}},
        },
        "components": [
            {
                "id": "job_scheduler",
                "path": "nvflare.app_common.job_schedulers.job_scheduler.DefaultJobScheduler",
                "args": {"max_jobs": 4},
            },
            {
                "id": "job_manager",
                "path": "nvflare.apis.impl.job_def_manager.SimpleJobDefManager",
                "args": {"uri_root": str(kit.startup / "jobs"), "job_store_id": "job_store"},
            },
            {"id": "job_store", "path": storage},
            {
                "id": "process_launcher",
                "path": "nvflare.app_common.job_launcher.server_process_launcher."
                "ServerProcessJobLauncher",
                "args": {},
            },
        ],
    }


def _file_handler(name: str, level: str) -> dict[str, Any]:
    return {
        "class": "logging.handlers.RotatingFileHandler",
        "level": level,
        "formatter": "baseFormatter",
        "filename": name,
        "mode": "a",
        "maxBytes": 20 * 2**20,
        "backupCount": 10,
    }


# FLARE's own logging without its output to the terminal and its JSON copy.
_LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "baseFormatter": {
            "()": "nvflare.fuel.utils.log_utils.BaseFormatter",
            "fmt": "%(asctime)s - %(name)s - %(levelname)s - %(fl_ctx)s - %(message)s",
        }
    },
    "handlers": {
        "logFileHandler": _file_handler("log.txt", "DEBUG"),
        "errorFileHandler": _file_handler("error_log.txt", "ERROR"),
    },
    "loggers": {"root": {"level": "INFO", "handlers": ["logFileHandler", "errorFileHandler"]}},
}


def loosened(kit: Kit) -> list[str]:
    """Return how the settings of a kit differ from those of a locked one, a line each.

    Args:
        kit: The kit.
    """
    local = kit.startup / "local"
    lines: list[str] = []
    for name, expected in locked_files(kit).items():
        if name != "log_config.json":  # how much is logged is up to the party
            lines += _file_differences(local / name, expected)
    unknown = sorted({path.name for path in local.iterdir()} - locked_files(kit).keys())
    lines += [
        f"local/{name}: FLARE may read it in place of a locked file; remove it"
        for name in unknown
        if name != "privacy.json"  # filters can only refuse more
    ]
    return lines + _connection_differences(kit)


def _connection_differences(kit: Kit) -> list[str]:
    """Return how the connection of a kit differs from mutual TLS to the server of its network."""
    lines = []
    root = read_certificate(kit.startup / "startup" / "rootCA.pem")
    if root.fingerprint != kit.root:
        lines.append(
            f"startup/rootCA.pem: its fingerprint is {root.fingerprint}, and the kit was installed "
            f"with {kit.root}"
        )
    name = {"server": "fed_server.json", "site": "fed_client.json"}.get(kit.kind, "fed_admin.json")
    try:
        text = (kit.startup / "startup" / name).read_text()
        values = json.loads(text)
        security = _security(values)
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return [*lines, f"startup/{name}: it cannot be read; install the kit again"]
    if security != "mtls":
        lines.append(f"startup/{name}: connection_security is {quoted(security)}, not mtls")
    host, port = kit.server
    if host not in text or str(port) not in text:
        lines.append(f"startup/{name}: the server is not {host}:{port}")
    return lines


def _security(values: Mapping[str, Any]) -> Any:
    if "admin" in values:
        return values["admin"]["connection_security"]
    section = values["client"] if "client" in values else values["servers"][0]
    return section["connection_security"]


def _file_differences(path: Path, expected: Any) -> list[str]:
    name = f"local/{path.name}"
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return [f"{name}: it is missing, so FLARE's defaults hold"]
    except (OSError, ValueError):
        return [f"{name}: it cannot be read"]
    return [f"{name}: {line}" for line in _differences(expected, content, "")]


def _differences(expected: Any, content: Any, key: str) -> list[str]:
    """Return the entries in which two values differ, a line each."""
    if key in _ADJUSTABLE:
        return []
    if isinstance(expected, list) and isinstance(content, list):
        expected, content = _by_name(expected), _by_name(content)
    if not isinstance(expected, dict) or not isinstance(content, dict):
        if expected == content:
            return []
        return [f"{key} is {quoted(content)}, not {quoted(expected)}"]
    lines = []
    for name in [*expected, *(name for name in content if name not in expected)]:
        inner = f"{key}.{name}" if key else name
        if name not in content:
            lines.append(f"{inner} is missing, not {quoted(expected[name])}")
        elif name not in expected:
            lines.append(f"{inner} was added")
        else:
            lines += _differences(expected[name], content[name], inner)
    return lines


def _by_name(values: list[Any]) -> dict[str, Any]:
    """Return a list as a mapping: components by id, texts by themselves, others by position."""
    entries = {}
    for position, value in enumerate(values):
        name = value if isinstance(value, str) else str(position)
        if isinstance(value, Mapping) and "id" in value:
            name = str(value["id"])
        entries[name] = value
    return entries


# Entries of FLARE's settings that a party may change: they concern itself alone.
_ADJUSTABLE = (
    "client",
    "components.resource_manager.args",
    "components.job_scheduler.args",
    "servers",
    "streaming_retry_timeout",
)


def point_stores(kit: Kit) -> None:
    """Let the stores of a server lie in its folder, which may have been moved."""
    path = kit.startup / "local" / "resources.json"
    expected = _server_resources(kit)
    try:
        values = json.loads(path.read_text())
        (manager,) = [part for part in values["components"] if part["id"] == "job_manager"]
        manager["args"]["uri_root"] = str(kit.startup / "jobs")
        values["snapshot_persistor"] = expected["snapshot_persistor"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigurationError(
            f"{path}: expected FLARE's settings of a server; install the kit again"
        ) from None
    path.write_text(json.dumps(values, indent=2) + "\n")


def make_private(folder: Path) -> None:
    """Make a folder and everything in it readable for its owner only."""
    folder.chmod(0o700)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o700 if path.is_dir() else 0o600)


def replace_startup(kit: Kit, packaged: Path) -> None:
    """Put a kit that FLARE made into the folder of a party.

    A kit that is installed already keeps its settings and logs: only certificates and keys are
    replaced.
    """
    if not kit.startup.exists():
        packaged.rename(kit.startup)
        return
    old = kit.startup / "startup.old"
    shutil.rmtree(old, ignore_errors=True)
    (kit.startup / "startup").rename(old)
    (packaged / "startup").rename(kit.startup / "startup")
    shutil.rmtree(old)
