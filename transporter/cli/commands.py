"""The tree of commands.

A command is a plain function in the module of its name that raises
:class:`~transporter.errors.TransporterError`, and a group is what that module's ``build`` returns.
A module imports heavy ones inside its functions, because ``transporter --help`` imports all of them
and must stay fast (a test measures it).
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Final

import typer

from transporter import __version__
from transporter.cli.command_group import add_command, show_help
from transporter.cli.output import write

COMMANDS: Final = (
    *("run", "quickstart", "init", "check", "doctor", "plan", "schema", "test", "dry-run"),
    *("compare", "status", "ready", "top", "ui", "events", "history", "query", "shell"),
    *("ack", "replay", "reload", "audit", "reader", "route", "log", "offsets", "parked"),
    *("queue", "outbox", "cdc", "adaptors"),
)
"""Commands and groups in the order of the help."""


def build(name: str = "") -> typer.Typer:
    """Build the command line's application, with all commands unless *name* is one of them.

    With one command it starts twice as fast, because no other is imported.
    """
    # rich would take longer than all the rest of `--help`.
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True)(_root)
    for each in [name] if name in COMMANDS else COMMANDS:
        word = each.replace("-", "_")
        module = import_module(f"transporter.cli.{word}")
        if hasattr(module, "build"):
            app.add_typer(module.build(), name=each)
        else:
            add_command(app, each, getattr(module, word))
    return app


def _root(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Move messages through a durable commit log into every sink, on Apache Spark."""
    if version:
        write(f"transporter {__version__}")
    else:
        show_help(context)
