"""Runs of older versions whose numbers a later correction changes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.validation.imports import FromFile

_WITHOUT_CONVOLUTIONS = ("mlp", "linear")


def outdated(
    config: Mapping[str, Any], version: str, task: Mapping[str, Any], clients: Sequence[str] = ()
) -> str | None:
    """Return why this version would compute a run differently; None if it would not.

    Before 0.2.0 an optimiser's memory came back to a convolution's weights in the wrong order, and
    FedeKD kept it whatever `keep_optimiser` said. Until targets were standardised, a task of
    regression had no centre and scale. Clients of the partition `domains` had numbers as names,
    which random streams follow.

    Args:
        config: The configuration of the run.
        version: The version that began it.
        task: Its task.
        clients: The names of its clients.
    """
    partition = str(config.get("data", {}).get("partition", ""))
    if partition.partition(":")[0] == "domains" and "0" in clients:
        return (
            f"begun by a version ({version}) that numbered the clients of domains; they are named "
            "by their domains now"
        )
    if task.get("kind") == "regression" and "centre" not in task:
        return (
            f"begun by a version ({version}) that did not standardise the number that is predicted"
        )
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is not None and (int(match[1]), int(match[2])) >= (0, 2):
        return None
    training = config["training"]
    method = config["method"]
    if training.get("optimiser", "sgd") == "sgd" and not training.get("momentum"):
        return None  # nothing to remember
    if method["name"] == "fedekd":
        return (
            f"begun by version {version}, whose FedeKD kept the optimiser's memory in every run "
            "and gave it to wrong weights of convolutions"
        )
    keeps_memory = method["name"] == "standalone" and training.get("keep_optimiser")
    has_images = len(task["shape"]) == 3
    if keeps_memory and has_images and _has_convolutions(config, method):
        return (
            f"begun by version {version}, whose Standalone with keep_optimiser gave the "
            "optimiser's memory to wrong weights of convolutions"
        )
    return None


DEFAULTS = 1  # number of the methods' defaults, written into every run


def with_its_defaults(config: FromFile, defaults: int | None) -> FromFile:
    """Return a run's configuration with the defaults it was begun with, where later ones differ.

    A stored configuration names only the parameters of a method that were given. Runs without a
    number of defaults began when CoRe-Fed had `rep: literal`.
    """
    method = config["method"]
    if defaults is not None or method["name"] != "corefed" or "rep" in method:
        return config
    return config.changed({**config, "method": {**method, "rep": "literal"}})


def _has_convolutions(config: Mapping[str, Any], method: Mapping[str, Any]) -> bool:
    """Return True if a Standalone run may train convolutions, also for single clients."""
    models = config.get("models") or {"model": config.get("model")}
    spec = models.get(method.get("model", "model"))
    specs = [spec]
    if isinstance(spec, dict):
        specs += (spec.get("clients") or {}).values()
    names = [spec.get("name") if isinstance(spec, dict) else spec for spec in specs]
    return any(str(name) not in _WITHOUT_CONVOLUTIONS for name in names)
