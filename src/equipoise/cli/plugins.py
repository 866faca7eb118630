"""Commands that installed packages add: entry points of the group `equipoise.commands`."""

from __future__ import annotations

from typing import Any

import click
import typer
from typer.core import TyperGroup

from equipoise.validation.imports import announced
from equipoise.validation.text import shown

GROUP = "equipoise.commands"


class Commands(TyperGroup):
    """Our commands, then those of packages. A name of ours is never replaced, and a package that fails breaks its own command only."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        own = super().list_commands(ctx)
        return [*own, *sorted(set(announced(GROUP)) - set(own))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command of ours, or one that a package adds."""
        own = super().get_command(ctx, cmd_name)
        points = announced(GROUP).get(cmd_name, [])
        if own is not None or not points:
            return own
        try:
            if len(points) > 1:
                raise ValueError(f"{len(points)} packages announce it; uninstall all but one")
            return _command(cmd_name, points[0].load())
        except (Exception, SystemExit) as error:  # somebody's module may fail in any way
            return _broken(cmd_name, f"{type(error).__name__}: {error}")


def _command(name: str, found: Any) -> click.Command:
    if isinstance(found, typer.Typer):
        command = typer.main.get_command(found)
    elif isinstance(found, click.Command):
        command = found
    elif callable(found) and not isinstance(found, type):
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command()(found)
        command = typer.main.get_command(app)
    else:
        raise TypeError(f"expected a typer app or a function, got {type(found).__name__}")
    command.name = name
    return command


def _broken(name: str, reason: str) -> click.Command:
    """A command that says why it cannot be run, in the list of commands and when it is called."""
    sentence = shown(f"{name} cannot be loaded ({' '.join(reason.split())[:300]})")

    def refuse(**given: Any) -> None:
        raise click.UsageError(f"{sentence}; update or uninstall the package that adds it")

    return click.Command(
        name,
        callback=refuse,
        short_help=sentence,
        help=sentence,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
