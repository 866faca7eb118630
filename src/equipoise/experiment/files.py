"""Configurations before they are checked: out of a YAML file, with dotted keys changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

from equipoise.validation import safe_yaml
from equipoise.validation.imports import FromFile
from equipoise.validation.names import quoted


class ConfigurationError(ValueError):
    """A configuration that cannot be run: names the key, the value and what is allowed."""


def load(path: Path | str) -> FromFile:
    """The mapping in a YAML file."""
    try:
        if not Path(path).exists():
            raise ConfigurationError(
                f"no experiment file {path}; give the path of a YAML file, or flags such as --data digits --method fedavg"
            )
        found = safe_yaml.read(path)
    except (safe_yaml.Unreadable, OSError) as error:
        raise ConfigurationError(str(error)) from None
    if not isinstance(found, dict):
        raise ConfigurationError(
            f"{path}: expected a mapping such as `method: fedavg`, got {type(found).__name__}"
        )
    return FromFile(found)


@overload
def with_settings(config: FromFile, settings: Mapping[str, Any]) -> FromFile: ...
@overload
def with_settings(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]: ...
def with_settings(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with dotted keys changed: {"method.mu": 0.1}; names that it brings in are the caller's."""
    result: dict[str, Any] = dict(config)
    for key, value in settings.items():
        *parents, last = key.split(".")
        section = result
        for parent in parents:
            inner = section.get(parent)
            # `method: fedprox` is short for a mapping with that name.
            inner = {"name": inner} if isinstance(inner, str) else {} if inner is None else inner
            if not isinstance(inner, Mapping):
                raise ConfigurationError(
                    f"{key}: {parent} is {quoted(inner)}, which has no parts; set {parent} itself"
                )
            inner = dict(inner)
            section[parent] = inner
            section = inner
        section[last] = value
    return config.changed(result, settings.values()) if isinstance(config, FromFile) else result


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one with dotted keys.

    >>> flat({"method": {"name": "fedprox", "mu": 0.1}, "rounds": 5})
    {'method.name': 'fedprox', 'method.mu': 0.1, 'rounds': 5}
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
