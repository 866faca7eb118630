"""Runs that an older version began and whose numbers a later correction changes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.validation.imports import FromFile

_WITHOUT_CONVOLUTIONS = ("mlp", "linear")


def outdated(
    config: Mapping[str, Any], version: str, task: Mapping[str, Any], clients: Sequence[str] = ()
) -> str | None:
    """Return why this run is not what this version would compute; None if it is.

    Before 0.2.0 an optimiser's memory came back to a convolution's weights in the wrong order, and FedeKD kept it whatever `keep_optimiser` said.
    Until targets were standardised, a task of regression had no centre and scale. Clients of the
    partition `domains` had numbers as names, which random streams follow.
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
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is not None and (int(found[1]), int(found[2])) >= (0, 2):
        return None
    training, method = config["training"], config["method"]
    if training.get("optimiser", "sgd") == "sgd" and not training.get("momentum"):
        return None  # nothing to remember
    if method["name"] == "fedekd":
        return f"begun by version {version}, whose FedeKD kept the optimiser's memory in every run and gave it to wrong weights of convolutions"
    kept = method["name"] == "standalone" and training.get("keep_optimiser")
    if (
        kept
        and len(task["shape"]) == 3
        and any(name not in _WITHOUT_CONVOLUTIONS for name in _architectures(config, method))
    ):
        return f"begun by version {version}, whose Standalone with keep_optimiser gave the optimiser's memory to wrong weights of convolutions"
    return None


DEFAULTS = 1  # written into every run: which defaults of methods it was begun with


def with_its_defaults(config: FromFile, defaults: int | None) -> FromFile:
    """Return a run's configuration with the defaults it was begun with, where later ones differ.

    A stored configuration names only the parameters of a method that were given. Runs without a
    number of defaults began when CoRe-Fed had `rep: literal`.
    """
    method = config["method"]
    if defaults is not None or method["name"] != "corefed" or "rep" in method:
        return config
    return config.changed({**config, "method": {**method, "rep": "literal"}})


def _architectures(config: Mapping[str, Any], method: Mapping[str, Any]) -> list[str]:
    """The names of the networks that a Standalone run trains, those of single clients included."""
    spec = (config.get("models") or {"model": config.get("model")}).get(
        method.get("model", "model")
    )
    specs = [spec, *(spec.get("clients") or {}).values()] if isinstance(spec, dict) else [spec]
    return [str(one.get("name") if isinstance(one, dict) else one) for one in specs]
