"""Settings of a site, which no message of a server changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LIMIT = 4 * 2**30  # bytes of one message
# The audit is a method of Equipoise that is not among the registered ones.
AUDIT = "equipoise.auditing.method:Audit"


@dataclass(frozen=True)
class SiteSettings:
    """Settings of a site.

    Attributes:
        data: The file or folder of the site's data, or a data set with sites.
        folder: The folder of the site: states and models of runs, and the log.
        methods: The methods that may be run here, by name; None for all of Equipoise.
        imports: The packages from which a server may name code.
        device: The torch device, cpu or cuda.
        codes: Of patients' records: the site's own file of the codes that make a label.
        limit: The largest message in bytes.
        deadline: The longest time of a step in seconds, whatever a server allows.
    """

    data: Path
    folder: Path
    methods: tuple[str, ...] | None = None
    imports: tuple[str, ...] = ()
    device: str = "cpu"
    codes: Path | None = None
    limit: int = LIMIT
    deadline: float = 24 * 3600.0

    def plain(self) -> dict[str, Any]:
        """Return the settings as plain data, for the child process of the site."""
        values = asdict(self)
        for name in ("data", "folder", "codes"):
            if values[name] is not None:
                values[name] = str(values[name])
        for name in ("methods", "imports"):
            if values[name] is not None:
                values[name] = list(values[name])
        return values

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> SiteSettings:
        """Return the settings that `plain` returned."""
        settings = dict(values)
        for name in ("data", "folder", "codes"):
            if settings[name] is not None:
                settings[name] = Path(settings[name])
        for name in ("methods", "imports"):
            if settings[name] is not None:
                settings[name] = tuple(settings[name])
        return cls(**settings)
