"""Equipoise: federated learning that is fair and that does not hurt those who join.

>>> import equipoise as eq
>>> eq.Experiment(method="fedprox").rounds
50
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from equipoise.mkl import request_reproducible
from equipoise.version import __version__ as __version__

request_reproducible()  # before torch, which fixes the mode of its products with the first of them

if TYPE_CHECKING:
    from equipoise.auditing import audit as audit
    from equipoise.callbacks import Callback as Callback
    from equipoise.comparison import compare as compare
    from equipoise.composition import compose as compose
    from equipoise.data import DataConfig as DataConfig
    from equipoise.data import Dataset as Dataset
    from equipoise.data import from_arrays as from_arrays
    from equipoise.data import from_frame as from_frame
    from equipoise.data import from_huggingface as from_huggingface
    from equipoise.data import from_sites as from_sites
    from equipoise.data import from_torch as from_torch
    from equipoise.experiment import Experiment as Experiment
    from equipoise.extensions import register as register
    from equipoise.losses.terms import distillation as distillation
    from equipoise.losses.terms import proximity as proximity
    from equipoise.losses.terms import supervised as supervised
    from equipoise.losses.terms import term as term
    from equipoise.method import Method as Method
    from equipoise.method import Served as Served
    from equipoise.method import Ups as Ups
    from equipoise.method import Weights as Weights
    from equipoise.records import Down as Down
    from equipoise.records import PerClient as PerClient
    from equipoise.records import State as State
    from equipoise.records import Up as Up
    from equipoise.runs import Run as Run
    from equipoise.runs.early_stopping import EarlyStopping as EarlyStopping
    from equipoise.simulate import resume as resume
    from equipoise.simulate import run as run
    from equipoise.training import Correction as Correction
    from equipoise.tree import Tree as Tree

_HOMES = {
    "Callback": "callbacks",
    "EarlyStopping": "runs.early_stopping",
    "audit": "auditing",
    "run": "simulate",
    "resume": "simulate",
    "compare": "comparison",
    "Experiment": "experiment",
    "compose": "composition",
    "Method": "method",
    "Weights": "method",
    "Ups": "method",
    "Served": "method",
    "State": "records",
    "Up": "records",
    "Down": "records",
    "PerClient": "records",
    "register": "extensions",
    "Run": "runs",
    "Tree": "tree",
    "Dataset": "data",
    "DataConfig": "data",
    "from_arrays": "data",
    "from_sites": "data",
    "from_torch": "data",
    "from_frame": "data",
    "from_huggingface": "data",
    "supervised": "losses.terms",
    "distillation": "losses.terms",
    "proximity": "losses.terms",
    "term": "losses.terms",
    "Correction": "training",
}
_PACKAGES = ("data", "losses", "metrics", "methods", "models", "weighting", "runs")
__all__ = [*_HOMES]


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES, "__version__"])


def __getattr__(name: str) -> Any:
    # Importing equipoise stays quick: torch comes with the first name that needs it.
    if name in _HOMES:
        return getattr(importlib.import_module(f"equipoise.{_HOMES[name]}"), name)
    if name in _PACKAGES:
        return importlib.import_module(f"equipoise.{name}")
    raise AttributeError(f"module 'equipoise' has no attribute {name!r}")
