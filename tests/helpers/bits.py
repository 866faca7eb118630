"""The final state of every method on digits, with an mlp and a small CNN, as digests: what a change
of the engine must not move.

`python -m tests.helpers.bits NAME ...` writes those of the named methods; do so only for a new
method, or where a change of bits is meant and said in the changelog. Without names it writes those
of all methods, for the processor of this machine in place of another.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_info

import equipoise as eq
from equipoise import methods, mkl
from tests.helpers.runs import QUICK, everything

EXPECTED = Path(__file__).parents[1] / "lasting" / "bits.json"
NETWORKS: dict[str, Any] = {
    "mlp": {"name": "mlp", "hidden": [12]},
    "cnn": {"name": "cnn", "width": 2, "hidden": 8},
}

WITHOUT_NORM: dict[str, Any] = {"name": "proxy_cnn"}  # for a method that refuses batch norm


def processor() -> str:
    """What the last bits of a matrix product may depend on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(
            (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""
        )
    except OSError:
        model = platform.processor()
    # NumPy's OpenBLAS chooses its kernels by more than the name of the model.
    kernels = {
        str(library["architecture"])
        for library in threadpool_info()
        if library["internal_api"] == "openblas"
    }
    parts = [model, torch.backends.cpu.get_cpu_capability(), *sorted(kernels)]
    processor = f"{', '.join(parts)}, torch {torch.__version__}"
    # Digests that were recorded before this mode was set name none.
    return processor if mkl.mode() == mkl.OFF else f"{processor}, MKL {mkl.mode()}"


def digest(values: dict[str, Any]) -> str:
    """Of every name, and of every value's bytes."""
    whole = hashlib.sha256()
    for name, value in sorted(values.items()):
        whole.update(name.encode())
        whole.update(
            value.contiguous().numpy().tobytes()
            if isinstance(value, torch.Tensor)
            else repr(value).encode()
        )
    return whole.hexdigest()


def norms(values: dict[str, Any]) -> dict[str, float]:
    """What another processor must agree with but for rounding."""
    return {
        name: float(value.double().norm())
        for name, value in sorted(values.items())
        if isinstance(value, torch.Tensor)
    }


# recorded under its former default, rep: literal
OPTIONS: dict[str, dict[str, Any]] = {**QUICK, "corefed": {"rep": "literal"}}


# recorded under a former default that methods still have
FORMER: dict[str, dict[str, Any]] = {"poise": {"variant": "one"}}


def settings(method: str, network: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "data": {"name": "digits", "partition": "dirichlet:0.5", "clients": 4, "samples": 240},
        "models": dict.fromkeys(
            ("model", "private", "proxy"),
            WITHOUT_NORM if method == "fedmdfg" and network == "cnn" else NETWORKS[network],
        ),
        "method": {"name": method, **options},
        "training": {"lr": 0.05, "batch": 16},
        "participation": {"number": 3},
        "evaluation": {"every": 0},
        "rounds": 3,
        "seed": 5,
        "workers": 0,
    }


def found(
    method: str, network: str, folder: Path, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    chosen = OPTIONS.get(method, {}) if options is None else options
    values = everything(eq.run(eq.Experiment(**settings(method, network, chosen)), folder))
    return {"digest": digest(values), "norm": math.hypot(*norms(values).values())}


def _of_networks(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        return {
            network: found(method, network, Path(scratch) / network, options)
            for network in NETWORKS
        }


def record(names: list[str]) -> None:
    """Write the digests of methods; of all, for this processor, if no name is given."""
    expected: dict[str, Any] = {"processor": processor(), "methods": {}, "former": {}}
    if names:
        expected = json.loads(EXPECTED.read_text())
    if expected["processor"] != processor():
        sys.exit(f"these digests belong to {expected['processor']}; this is {processor()}")
    for name in names or methods.names():
        expected["methods"][name] = _of_networks(name, OPTIONS.get(name, {}))
    for name in FORMER.keys() & set(names or FORMER):
        expected["former"][name] = _of_networks(name, FORMER[name])
    EXPECTED.write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    record(sys.argv[1:])
