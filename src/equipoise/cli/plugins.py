"""Commands of installed packages: entry points of the group `equipoise.commands`."""

from __future__ import annotations

from typing import Any

import click
import typer
from typer.core import TyperGroup

from equipoise.validation.imports import announced
from equipoise.validation.text import shown

GROUP = "equipoise.commands"


class Commands(TyperGroup):
    """The built-in commands, then those of packages.

    A built-in command is never replaced, and a package that fails breaks its own command only.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        own = super().list_commands(ctx)
        return [*own, *sorted(set(announced(GROUP)) - set(own))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
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


def _command(name: str, loaded: Any) -> click.Command:
    """Return the command for what an entry point names."""
    if isinstance(loaded, typer.Typer):
        command = typer.main.get_command(loaded)
    elif isinstance(loaded, click.Command):
        command = loaded
    elif callable(loaded) and not isinstance(loaded, type):
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command()(loaded)
        command = typer.main.get_command(app)
    else:
        raise TypeError(f"expected a typer app or a function, got {type(loaded).__name__}")
    command.name = name
    return command


def _broken(name: str, reason: str) -> click.Command:
    """Return a command that says why it cannot be loaded, in the list and when it is called."""
    sentence = shown(f"{name} cannot be loaded ({' '.join(reason.split())[:300]})")

    def refuse(**options: Any) -> None:
        raise click.UsageError(f"{sentence}; update or uninstall the package that adds it")

    return click.Command(
        name,
        callback=refuse,
        short_help=sentence,
        help=sentence,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
