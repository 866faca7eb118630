"""What users type: every command with its options and their defaults.

A change here belongs into CHANGELOG.md.

python -m tests.e2e.test_commands > tests/e2e/commands.yaml
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
import yaml

from equipoise.cli import app


def commands() -> dict[str, dict[str, str]]:
    return dict(_below("equipoise", typer.main.get_command(app)))


def _below(name: str, command: Any) -> Iterator[tuple[str, dict[str, str]]]:
    yield name, {"/".join([*one.opts, *one.secondary_opts]): _of(one) for one in command.params}
    for word, child in getattr(command, "commands", {}).items():
        yield from _below(f"{name} {word}", child)


def _of(option: Any) -> str:
    kind = (
        ", flag"
        if getattr(option, "is_flag", False)
        else ", several"
        if option.multiple or option.nargs != 1
        else ""
    )
    default = "required" if option.required else repr(option.default)
    return f"{default}{kind}"


def test_options_and_defaults_are_those_that_users_know() -> None:
    assert commands() == yaml.safe_load(Path(__file__).with_name("commands.yaml").read_text())


if __name__ == "__main__":
    print(yaml.safe_dump(commands(), sort_keys=False, width=160), end="")
