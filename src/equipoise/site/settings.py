"""Settings of a site, which no message of a server changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LIMIT = 4 * 2**30  # bytes of one message
# The audit is a method of Equipoise that is not among the registered ones.
AUDIT = "equipoise.auditing.method:Audit"
_PATHS = ("data", "folder", "schema", "codes")
_NAMES = ("methods", "imports", "groups")


@dataclass(frozen=True)
class SiteSettings:
    """Settings of a site.

    Attributes:
        data: The file or folder of the site's data, or a data set with sites.
        folder: The folder of the site: states and models of runs, and the log.
        schema: The file of the schema on which the sites agreed; an experiment with another one is
            refused. None accepts that of the server.
        methods: The methods that may be run here, by name; None for all of Equipoise.
        imports: The packages from which a server may name code.
        device: The torch device, cpu or cuda.
        codes: Of patients' records: the site's own file of the codes that make a label.
        groups: With `schema`: columns by which test samples may be counted, besides those that it
            lists.
        limit: The largest message in bytes.
        deadline: The longest time of a step in seconds, whatever a server allows.
    """

    data: Path
    folder: Path
    schema: Path | None = None
    methods: tuple[str, ...] | None = None
    imports: tuple[str, ...] = ()
    device: str = "cpu"
    codes: Path | None = None
    groups: tuple[str, ...] = ()
    limit: int = LIMIT
    deadline: float = 24 * 3600.0

    def plain(self) -> dict[str, Any]:
        """Return the settings as plain data, for the child process of the site."""
        values = asdict(self)
        for name in _PATHS:
            if values[name] is not None:
                values[name] = str(values[name])
        for name in _NAMES:
            if values[name] is not None:
                values[name] = list(values[name])
        return values

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> SiteSettings:
        """Return the settings that `plain` returned."""
        settings = dict(values)
        for name in _PATHS:
            if settings[name] is not None:
                settings[name] = Path(settings[name])
        for name in _NAMES:
            if settings[name] is not None:
                settings[name] = tuple(settings[name])
        return cls(**settings)
