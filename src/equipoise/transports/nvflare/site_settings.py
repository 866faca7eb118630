"""The file `local/equipoise.yaml`, in which a site decides which runs it takes part in.

No message of a server changes or reads it. It is read anew when a run begins.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, ValidationError

from equipoise.experiment import ConfigurationError
from equipoise.site.settings import LIMIT, SiteSettings
from equipoise.transports.nvflare.kits import Kit
from equipoise.validation import safe_yaml
from equipoise.validation.names import did_you_mean, quoted
from equipoise.validation.settings import Settings, plain_reason

FILE = Path("local") / "equipoise.yaml"
MINIMUM_ROWS = 20
# Variables by which `site start --data DATA --schema SCHEMA` reaches the processes of a site.
DATA = "EQUIPOISE_SITE_DATA"
SCHEMA = "EQUIPOISE_SITE_SCHEMA"

_TEXT = """\
# Settings of the site {name} in the network {network}.
# No message of a server changes or reads them, and they win over the experiment of a run.
# They are read when a run begins. Relative paths start at the folder of the site.

# File or folder of the site's data. `equipoise site start --data DATA` replaces it once.
data: null
# File of the schema on which the sites agreed. With null, the server decides which columns are
# inputs and which one is predicted.
schema: null
# File of the codes that make a label, for records of patients.
codes: null

# Folder of the states and models of runs, and of the site's log. They never leave it.
states: states

# Methods that may be run, such as [fedavg, scaffold]; null for all methods of Equipoise.
methods: null
# With fewer samples the site takes part in no run: updates of few samples reveal single ones.
minimum_rows: {minimum_rows}
# Whether histograms of scores leave the site after the last round (101 bins per class).
histograms: true

# cpu or cuda
device: cpu
# Largest message in bytes, and longest time of one step in seconds.
largest_message: {largest_message}
longest_step: 86400
"""


class _File(Settings):
    """The content of the file."""

    model_config = ConfigDict(extra="forbid")

    data: str | None = None
    schema_file: Path | None = Field(default=None, alias="schema")
    codes: Path | None = None
    states: Path = Path("states")
    methods: tuple[str, ...] | None = None
    minimum_rows: int = Field(default=MINIMUM_ROWS, ge=1)
    histograms: bool = True
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    largest_message: int = Field(default=LIMIT, ge=1)
    longest_step: float = Field(default=86400.0, gt=0)


def write_settings(kit: Kit) -> None:
    """Write the file of a new site; one that exists is the site's and stays."""
    path = kit.folder / FILE
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text(
        _TEXT.format(
            name=kit.name,
            network=kit.network,
            minimum_rows=MINIMUM_ROWS,
            largest_message=LIMIT,
        )
    )
    path.chmod(0o600)


def site_settings(kit: Kit, variables: Mapping[str, str] = os.environ) -> SiteSettings:
    """Return the settings of a site.

    Args:
        kit: The kit of the site.
        variables: Environment variables, which may name other data than the file does.

    Raises:
        ConfigurationError: If the file is missing or wrong, or names no data.
    """
    path = kit.folder / FILE
    content = _read(path)
    data = _data(kit, variables.get(DATA) or content.data)
    if data is None:
        raise ConfigurationError(
            f"{path}: expected the file or folder of the site's data under `data`, got none; "
            "add it, or start the site with --data"
        )
    states = _path(kit, content.states)
    assert states is not None
    return SiteSettings(
        data=data,
        folder=states,
        schema=_path(kit, variables.get(SCHEMA) or content.schema_file),
        methods=content.methods,
        device=content.device,
        codes=_path(kit, content.codes),
        limit=content.largest_message,
        deadline=content.longest_step,
        minimum_rows=content.minimum_rows,
        histograms=content.histograms,
    )


def _data(kit: Kit, value: str | None) -> Path | None:
    """Return the data of a site; a name that is no file may be that of a data set."""
    path = _path(kit, value)
    if value is not None and path is not None and not path.exists():
        return Path(value)
    return path


def _path(kit: Kit, value: str | Path | None) -> Path | None:
    """Return a path that may start at the folder of the site."""
    return None if value is None else kit.folder / value


def _read(path: Path) -> _File:
    if not path.is_file():
        raise ConfigurationError(
            f"{path}: expected the settings of the site; there is no such file, "
            "`equipoise site install` writes it"
        )
    values = safe_yaml.read(path)
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigurationError(f"{path}: expected keys with values, got {quoted(values)}")
    try:
        return _File(**values)
    except ValidationError as error:
        raise ConfigurationError(_explained(path, error.errors()[0])) from None


def _explained(path: Path, error: Any) -> str:
    """Return a sentence about the first fault in the file."""
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        known = [field.alias or name for name, field in _File.model_fields.items()]
        return f"{path}: unknown key {quoted(key)}{did_you_mean(key, known)}"
    reason = plain_reason(str(error["msg"]))
    return f"{path}, {key}: {reason}, got {quoted(error['input'])}"
