"""Kits of the parties of a network: opened, locked, and compared with the locks.

A party has one folder. It holds the private key, the kit that FLARE runs, the settings of the
party, and everything that is written while it takes part.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from equipoise.experiment import ConfigurationError
from equipoise.validation import safe_yaml
from equipoise.validation.names import quoted

Kind = Literal["server", "site", "lead", "member"]
KINDS: tuple[Kind, ...] = ("server", "site", "lead", "member")
DESCRIPTION = "kit.yaml"
REQUEST = "request"
FLARE = "flare"
HOME = "home"  # FLARE's commands write records to the home folder

CONTROLLER = "equipoise.transports.nvflare.controller.RunController"
EXECUTOR = "equipoise.transports.nvflare.executor.SiteExecutor"
# Seconds after which FLARE ends the thread that waits for the answer to a poll. With its default
# of 60 s, a site that polls 20 times a second has hundreds of threads.
_RETRY_TIMEOUT = 2.0

# Nobody may ship code, read files, copy jobs of others or operate a party from afar. A lead
# submits runs and manages those of its own; a member looks on.
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
}
_LEAD = _NOTHING | {
    "submit_job": "any",
    "manage_job": "n:submitter",
    "download_job": "n:submitter",
    "view": "any",
}
AUTHORIZATION = {
    "format_version": "1.0",
    "permissions": {
        "project_admin": _NOTHING,
        "org_admin": _NOTHING,
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
    return kit_of(folder, values)


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


def command_of(kind: str) -> str:
    """Return the command of a kind of party: persons share one."""
    return kind if kind in ("server", "site") else "member"


def read_description(folder: Path) -> dict[str, str]:
    """Return what the folder of a party says about itself.

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
    """Write what the folder of a party says about itself."""
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
            "comm_config.json": {"streaming_retry_timeout": _RETRY_TIMEOUT},
            "log_config.json": _LOGGING,
        }
    if kit.kind == "site":
        return {
            "resources.json": _SITE_RESOURCES,
            "authorization.json": AUTHORIZATION,
            "comm_config.json": {"streaming_retry_timeout": _RETRY_TIMEOUT},
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
