"""Units of systemd that run a party and start it again after a crash."""

from __future__ import annotations

import getpass
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from equipoise.transports.nvflare.kits import Kit

_TEXT = """\
# /etc/systemd/system/equipoise-{network}-{name}.service
[Unit]
Description=Equipoise: the {kind} {name} of the network {network}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
User={user}
WorkingDirectory={folder}
ExecStart={command}
Restart=always
RestartSec=5
TimeoutStopSec=60
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=full

[Install]
WantedBy=multi-user.target
"""


def unit(kit: Kit, options: Sequence[str] = ()) -> str:
    """Return the unit of a server or a site.

    Args:
        kit: The kit of the party.
        options: Options of `equipoise site start`.
    """
    words = [*_program(), kit.kind, "start", str(kit.folder), *options]
    return _TEXT.format(
        network=kit.network,
        name=kit.name,
        kind=kit.kind,
        user=getpass.getuser(),
        folder=kit.folder,
        # systemd replaces what follows a percent sign.
        command=shlex.join(words).replace("%", "%%"),
    )


def _program() -> list[str]:
    """Return the command `equipoise` of this installation, with its whole path."""
    next_to_python = Path(sys.executable).with_name("equipoise")
    if next_to_python.exists():
        return [str(next_to_python)]
    on_path = shutil.which("equipoise")
    return [on_path] if on_path else [sys.executable, "-m", "equipoise"]
