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


DEFAULTS = 3  # number of the methods' defaults, written into every run
# Number of the defaults -> method -> parameters that had other defaults before.
_FORMER_DEFAULTS: dict[int, dict[str, dict[str, Any]]] = {
    1: {"corefed": {"rep": "literal"}},
    2: {"poise": {"variant": "one"}},
    3: {"poise": {"hold": 0.667, "momentum": 0.0, "spend": False}},
}


def with_its_defaults(config: FromFile, defaults: int | None) -> FromFile:
    """Return a run's configuration with the defaults it was begun with, where later ones differ.

    A stored configuration names only the parameters of a method that were given.

    Args:
        config: The configuration of the run.
        defaults: The number of the defaults when it began; None for runs older than 1.
    """
    method = _with_former_defaults(config["method"], defaults or 0)
    if method == config["method"]:
        return config
    return config.changed({**config, "method": method})


def _with_former_defaults(method: Mapping[str, Any], defaults: int) -> dict[str, Any]:
    """Return a method, and those that are composed with it, with parameters as they were."""
    former: dict[str, Any] = {}
    for number, changed in _FORMER_DEFAULTS.items():
        if number > defaults:
            former |= changed.get(method["name"], {})
    parts = {
        slot: _with_former_defaults(part, defaults)
        for slot, part in method.items()
        if isinstance(part, Mapping) and "name" in part
    }
    return {**former, **method, **parts}


def _has_convolutions(config: Mapping[str, Any], method: Mapping[str, Any]) -> bool:
    """Return True if a Standalone run may train convolutions, also for single clients."""
    models = config.get("models") or {"model": config.get("model")}
    spec = models.get(method.get("model", "model"))
    specs = [spec]
    if isinstance(spec, dict):
        specs += (spec.get("clients") or {}).values()
    names = [spec.get("name") if isinstance(spec, dict) else spec for spec in specs]
    return any(str(name) not in _WITHOUT_CONVOLUTIONS for name in names)
