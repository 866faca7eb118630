"""Half-finished runs of store format 1, kept in the repository: every later version resumes them to the bits that version 0.1.0 would have reached.

`python tests/lasting/half_finished.py` made them with version 0.1.0 and cannot make them again: later versions write later formats.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).with_suffix("")
EXPECTED = FOLDER / "expected.json"
SETTINGS: dict[str, Any] = {
    "data": {"name": "digits", "partition": "dirichlet:0.5", "clients": 4},
    "model": {"name": "mlp", "hidden": [12]},
    "training": {"lr": 0.1, "batch": 16},
    "participation": {"number": 3},
    "rounds": 4,
    "seed": 11,
    "workers": 0,
    "keep": 1,
}
METHODS = ("fedavg", "scaffold")


def processor() -> str:
    """What the last bits of a matrix product may depend on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        model = platform.processor()
    return f"{model}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def digest(values: dict[str, Any]) -> str:
    """Of every name, and of every value's bytes."""
    whole = hashlib.sha256()
    for name, value in sorted(values.items()):
        whole.update(name.encode())
        whole.update(value.contiguous().numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode())
    return whole.hexdigest()


def norms(values: dict[str, Any]) -> dict[str, float]:
    """What another processor must agree with but for rounding."""
    return {name: float(value.double().norm()) for name, value in sorted(values.items()) if isinstance(value, torch.Tensor)}


def _make() -> None:
    import sys

    sys.path.insert(0, str(Path(__file__).parent.parent / "contract"))
    from checks import everything

    import equipoise as eq
    from equipoise.engine.exchange import Watcher

    expected: dict[str, Any] = {"processor": processor(), "methods": {}}
    for method in METHODS:
        experiment, seen = eq.Experiment(method=method, **SETTINGS), []
        whole = eq.run(experiment, FOLDER / "whole")
        values = everything(whole)
        rows = [(r["round"], r["client"], r["model"], r["phase"], r["split"], r["metric"], round(r["value"], 9)) for r in whole.table()]
        expected["methods"][method] = {
            "digest": digest(values),
            "norms": norms(values),
            "table": hashlib.sha256(repr(rows).encode()).hexdigest(),
        }
        shutil.rmtree(FOLDER / "whole")
        shutil.rmtree(FOLDER / method, ignore_errors=True)
        watcher = Watcher(on_round=seen.append, interrupted=lambda seen=seen: len(seen) == 2)
        import contextlib

        from equipoise import simulate

        # The watcher's own `interrupted` is replaced by the signal handler's: put it back.
        original = simulate.interruptible
        simulate.interruptible = lambda stop=watcher.interrupted: contextlib.nullcontext(stop)
        try:
            eq.run(experiment, FOLDER / method, watcher=watcher)
        except KeyboardInterrupt as stopped:
            print(stopped)
        finally:
            simulate.interruptible = original
    EXPECTED.write_text(json.dumps(expected, indent=1))


if __name__ == "__main__":
    _make()
