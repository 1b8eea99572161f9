"""Registration of commands, alone or in a group such as ``transporter log``."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import typer

from transporter.cli.output import write

if TYPE_CHECKING:
    from collections.abc import Callable


def command_group(about: str, **commands: Callable[..., object]) -> typer.Typer:
    """Return a group of *commands* by their names. Without a command it shows its help."""
    group = typer.Typer(help=about, rich_markup_mode=None)
    group.callback(invoke_without_command=True)(show_help)
    for name, command in commands.items():
        add_command(group, name.replace("_", "-"), command)
    return group


def add_command(app: typer.Typer, name: str, command: Callable[..., object]) -> None:
    """Add *command* to *app* as *name*, with its docstring as the help text."""
    app.command(name, help=_help_text(command))(command)


def _help_text(command: Callable[..., object]) -> str:
    """Return the docstring of *command*, in which examples keep their lines."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    # Click does not wrap a paragraph behind a line with a backspace.
    return "\n\n".join(
        f"\b\n{each}" if each.startswith(("Example:", "Examples:")) else each for each in paragraphs
    )


def show_help(context: typer.Context) -> None:
    """Show the help unless a command is named."""
    if context.invoked_subcommand is None:
        write(context.get_help())
