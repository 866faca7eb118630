"""The digest of a run's result, by which two results are compared bit for bit."""

from __future__ import annotations

import hashlib
import json

from equipoise.runs.run import Run

_KINDS = ("server", "client")


def result_digest(run: Run) -> str:
    """Return a digest of all that a run has learnt and measured.

    Two runs with the same digest have the same clients and data, the same states of server and
    clients after the last round, and the same final values. Names, times and folders do not count.

    Args:
        run: An open run.
    """
    states = []
    for kind in _KINDS:
        for key, stored in sorted(run.store.current(kind).items()):
            states.append([kind, key, stored.digest])
    columns = ("round", "client", "model", "split", "metric", "value")
    values = sorted(map(repr, run.columns(*columns, phase="final")))
    content = [run.store.meta("fingerprint"), list(run.clients), states, values]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
