"""Configurations before they are checked: reading YAML files and changing dotted keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, overload

from equipoise.validation.imports import FromFile
from equipoise.validation.names import quoted
from equipoise.validation.safe_yaml import Unreadable
from equipoise.validation.yaml_sections import read_with_lines


class ConfigurationError(ValueError):
    """A configuration that cannot be run: names the key, the value and what is allowed."""


def load(path: Path | str) -> FromFile:
    """Return the configuration in a YAML file.

    Args:
        path: The path of the file.

    Raises:
        ConfigurationError: If there is no such file, or it holds no mapping.
    """
    try:
        if not Path(path).exists():
            raise ConfigurationError(
                f"no experiment file {path}; give the path of a YAML file, "
                "or flags such as --data digits --method fedavg"
            )
        content, lines = read_with_lines(path)
    except (Unreadable, OSError) as error:
        raise ConfigurationError(str(error)) from None
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"{path}: expected a mapping such as `method: fedavg`, got {type(content).__name__}"
        )
    config = FromFile(content)
    file = str(path)
    config.locations = {key: f"{file}, line {line}" for key, line in lines.items()}
    return config


def with_locations(message: str, config: Mapping[str, Any]) -> str:
    """Return a message whose lines name the file and line of their key, if a file has it.

    Args:
        message: Lines of the form `KEY: REASON`.
        config: The configuration; one that is not from a file leaves the message as it is.
    """
    if not isinstance(config, FromFile):
        return message
    lines = []
    for line in message.split("\n"):
        location = config.location_of(line.partition(": ")[0])
        lines.append(f"{location}: {line}" if location is not None else line)
    return "\n".join(lines)


@overload
def with_settings(config: FromFile, settings: Mapping[str, Any]) -> FromFile: ...
@overload
def with_settings(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]: ...
def with_settings(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with some settings changed.

    Args:
        config: The configuration, which stays as it is.
        settings: New values by dotted key, such as ``{"method.mu": 0.1}``. Code that they name
            is trusted, also if the configuration comes from a file.

    Raises:
        ConfigurationError: If a key leads into a value that has no parts.
    """
    result: dict[str, Any] = dict(config)
    for key, value in settings.items():
        *parents, last = key.split(".")
        section = result
        for parent in parents:
            section[parent] = _section(section.get(parent), key, parent)
            section = section[parent]
        section[last] = value
    if isinstance(config, FromFile):
        changed = config.changed(result, settings.values())
        changed.locations = _without(config.locations, settings)
        return changed
    return result


def _without(locations: Mapping[str, str], settings: Iterable[str]) -> dict[str, str]:
    """Return the locations of keys; those that the command line sets have an empty one."""
    replaced = dict.fromkeys(settings, "")
    inside = tuple(f"{key}." for key in replaced)
    others = {key: location for key, location in locations.items() if not key.startswith(inside)}
    return others | replaced


def _section(value: Any, key: str, parent: str) -> dict[str, Any]:
    """Return a copy of a section that may be changed."""
    if value is None:
        return {}
    if isinstance(value, str):  # `method: fedprox` is short for a mapping with that name
        return {"name": value}
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            f"{key}: {parent} is {quoted(value)}, which has no parts; set {parent} itself"
        )
    return dict(value)


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one mapping with dotted keys.

    Args:
        config: The mapping.
        prefix: Text before every key.

    Example:
        >>> flat({"method": {"name": "fedprox", "mu": 0.1}, "rounds": 5})
        {'method.name': 'fedprox', 'method.mu': 0.1, 'rounds': 5}
    """
    values: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            values |= flat(value, f"{prefix}{key}.")
        else:
            values[f"{prefix}{key}"] = value
    return values
