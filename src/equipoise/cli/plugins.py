"""Commands of installed packages: entry points of the group `equipoise.commands`."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from equipoise.validation.imports import announced
from equipoise.validation.text import shown

GROUP = "equipoise.commands"


class Commands(TyperGroup):
    """The built-in commands, then those of packages.

    A built-in command is never replaced, and a package that fails breaks its own command only.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        own = super().list_commands(ctx)
        return [*own, *sorted(set(announced(GROUP)) - set(own))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a built-in command, or one that a package adds."""
        own = super().get_command(ctx, cmd_name)
        points = announced(GROUP).get(cmd_name, [])
        if own is not None or not points:
            return own
        try:
            if len(points) > 1:
                raise ValueError(f"{len(points)} packages announce it; uninstall all but one")
            return _command(cmd_name, points[0].load())
        except (Exception, SystemExit) as error:  # a package may fail in any way
            return _broken(cmd_name, f"{type(error).__name__}: {error}")


def _command(name: str, loaded: Any) -> Any:
    """Return the command for what an entry point names.

    Its class is that of click up to typer 0.25, and one of typer itself from 0.26 on.
    """
    if isinstance(loaded, typer.Typer):
        command: Any = typer.main.get_command(loaded)
    elif callable(loaded) and not isinstance(loaded, type):
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command()(loaded)
        command = typer.main.get_command(app)
    else:
        raise TypeError(f"expected a typer app or a function, got {type(loaded).__name__}")
    command.name = name
    return command


def _broken(name: str, reason: str) -> Any:
    """Return a command that says why it cannot be loaded, in the list and when it is called."""
    sentence = shown(f"{name} cannot be loaded ({' '.join(reason.split())[:300]})")

    def refuse() -> None:
        raise typer.BadParameter(f"{sentence}; update or uninstall the package that adds it")

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(
        name,
        help=sentence,
        short_help=sentence,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )(refuse)
    command: Any = typer.main.get_command(app)
    command.name = name
    return command
