"""A group of commands, as ``transporter log`` is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from transporter.cli.output import write

if TYPE_CHECKING:
    from collections.abc import Callable


def group(about: str, **commands: Callable[..., object]) -> typer.Typer:
    """Return a group of *commands* by their names; without one it shows its help."""
    made = typer.Typer(help=about, rich_markup_mode=None)
    made.callback(invoke_without_command=True)(show_help)
    for name, command in commands.items():
        made.command(name)(command)
    return made


def show_help(context: typer.Context) -> None:
    """Show the help unless a command is named."""
    if context.invoked_subcommand is None:
        write(context.get_help())
