"""Settings of a site, which no message of a server changes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LIMIT = 4 * 2**30  # bytes of one message
LEAST_MEMORY = 2**29  # bytes without which a child could not even be started
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
        wait: The longest time in seconds in which a message waits for another one.
        memory_limit: The largest memory of the child process in bytes, or None for no limit. It is
            a limit of allocated memory (`RLIMIT_DATA`), so that it needs Linux and the device cpu.
        minimum_rows: The number of samples below which the site takes part in no run, since
            updates and values of few samples reveal single ones.
        histograms: Whether histograms of scores may leave the site, whatever a server asks.
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
    wait: float = 60.0
    memory_limit: int | None = None
    minimum_rows: int = 0
    histograms: bool = True

    def __post_init__(self) -> None:
        if self.memory_limit is None:
            return
        if sys.platform != "linux" or self.device != "cpu":
            raise ValueError(
                "memory_limit: expected none, since it holds on Linux and with the device cpu "
                f"only, got {self.memory_limit} on {sys.platform} with {self.device}; leave it out"
            )
        if self.memory_limit < LEAST_MEMORY:
            raise ValueError(
                f"memory_limit: expected at least {LEAST_MEMORY} bytes, which importing torch "
                f"needs, got {self.memory_limit}; raise it"
            )

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
