"""Supervision of the runs of a server, in a thread of the process that runs the server."""

from __future__ import annotations

import logging
import logging.handlers
import threading
import time
import traceback

from equipoise.experiment import ConfigurationError
from equipoise.transports.nvflare.entry import RUNS
from equipoise.transports.nvflare.jobs import open_desk
from equipoise.transports.nvflare.kits import Kit
from equipoise.transports.nvflare.processes import LOGS
from equipoise.transports.nvflare.supervisor import Supervisor

LOG = "supervisor.log"
_INTERVAL = 1.0  # seconds between two looks at the runs
_PAUSE = 3.0  # seconds between two attempts to connect to a server that did not answer
_END_DEADLINE = 15.0


class Supervision:
    """A thread that attends to the runs of a server.

    Args:
        server: The kit of the server.
        supervisor: The kit of its supervisor.
    """

    def __init__(self, server: Kit, supervisor: Kit) -> None:
        self._kit = supervisor
        self._stopped = threading.Event()
        self._log = _log_of(server)
        self._supervisor = Supervisor(
            server.folder / RUNS, server.startup / "log.txt", self._log.info, started=time.time()
        )
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def start(self) -> None:
        """Begin to attend to the runs."""
        self._thread.start()

    def end(self) -> None:
        """Stop attending to the runs; their jobs end with the server."""
        self._stopped.set()
        self._thread.join(_END_DEADLINE)
        for handler in list(self._log.handlers):
            self._log.removeHandler(handler)
            handler.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._attend()
            except (ConfigurationError, OSError) as error:  # such as a full disk
                self._log.info("%s", error)
            except Exception:  # the supervisor must outlive everything but its server
                self._log.error("%s", traceback.format_exc())
            self._stopped.wait(_PAUSE)

    def _attend(self) -> None:
        """Attend to the runs as long as the connection to the server holds."""
        with open_desk(self._kit) as desk:
            while not self._stopped.wait(_INTERVAL):
                self._supervisor.step(desk)


def _log_of(server: Kit) -> logging.Logger:
    """Return the log of the supervisor, which does not grow without bounds."""
    path = server.folder / LOGS / LOG
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.touch(mode=0o600)
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=2**22, backupCount=4)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log = logging.Logger(f"supervisor of {server.folder}")
    log.addHandler(handler)
    return log
