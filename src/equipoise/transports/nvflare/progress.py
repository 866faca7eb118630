"""Progress of a run at the server, in a form that a scientist elsewhere can read."""

from __future__ import annotations

import base64
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.callbacks import Callback, ClientProgress, RunStart
from equipoise.runs.round_summary import summarise_round
from equipoise.storage.files import DATABASE
from equipoise.storage.tables import RoundRecord

# A larger database is not sent while a run is in progress; the whole run arrives at the end.
LARGEST_DATABASE = 2**23
RESENT = 10.0  # seconds after which a database is sent once more, in case it was lost


@dataclass
class NetworkProgress(Callback):
    """Collects the progress of a run, which another thread reads.

    Attributes:
        sites: Returns the state of each site: idle, waiting, working or away.
        main: The main metric of the experiment, if it names one.
    """

    sites: Callable[[], Mapping[str, str]]
    main: str | None = None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._values: dict[str, Any] = {"status": "opening", "round": 0, "rounds": 0}
        self._sent_round = -1
        self._sent_at = 0.0

    def on_start(self, start: RunStart) -> None:
        """Note the number of rounds."""
        self._folder = start.folder
        self._update(status="running", round=start.first - 1, rounds=start.rounds)

    def on_client(self, progress: ClientProgress) -> None:
        """Note how many sites have answered."""
        self._update(step=progress.step, done=progress.done, total=progress.total)

    def on_round(self, record: RoundRecord) -> None:
        """Note the round and its evaluation."""
        if record.finish:
            self._update(ending=True)
        else:
            self._update(round=record.round)
        self._update(committed=time.time())
        summary = summarise_round(record, self.main)
        if summary is not None:
            metric = summary.metric
            evaluation = {
                "round": record.round,
                "metric": metric.name,
                "average": summary.average,
                "worst": summary.worst,
                "lower_is_better": metric.lower_is_better,
            }
            self._update(evaluation=evaluation)

    def on_end(self, folder: Path, error: BaseException | None) -> None:
        """Note the end."""
        self._update(status="finished" if error is None else "stopped")

    def _update(self, **values: Any) -> None:
        with self._lock:
            self._values.update(values)

    def snapshot(self) -> dict[str, Any]:
        """Return the progress as plain data, with the tables of the run if they have changed."""
        with self._lock:
            values = dict(self._values)
            send_tables = self._has_news(values["round"])
        values["sites"] = dict(self.sites())
        if send_tables and self._folder is not None:
            values["database"] = packed_database(self._folder)
        return values

    def _has_news(self, number: int) -> bool:
        """Return True if the tables of a round have not been sent in the last seconds."""
        is_old = number == self._sent_round and self.clock() - self._sent_at < RESENT
        if is_old:
            return False
        self._sent_round = number
        self._sent_at = self.clock()
        return True


def packed_database(folder: Path) -> str | None:
    """Return the database of a run as text; None if it is too large or not there yet.

    Args:
        folder: The folder of the run.
    """
    path = folder / DATABASE
    if not path.exists():
        return None
    address = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with sqlite3.connect(address, uri=True, timeout=5) as source:
            copy = sqlite3.connect(":memory:")
            source.backup(copy)
            content = copy.serialize()
            copy.close()
        source.close()
    except sqlite3.Error:
        return None
    if len(content) > LARGEST_DATABASE:
        return None
    return base64.b64encode(zlib.compress(content)).decode()


def unpacked_database(text: str) -> bytes:
    """Return the database in a text, which may come from a stranger.

    Raises:
        ValueError: If it is none, or larger than any that is sent.
    """
    decompressor = zlib.decompressobj()
    try:
        content = decompressor.decompress(base64.b64decode(text), LARGEST_DATABASE + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(content) > LARGEST_DATABASE or not decompressor.eof:
        raise ValueError("a database that is larger than any that is sent")
    return content
