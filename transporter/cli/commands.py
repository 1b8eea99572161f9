"""The tree of commands.

A command is a plain function in its own module that raises
:class:`~transporter.errors.TransporterError`. It imports heavy modules inside its
body, because ``transporter --help`` imports every command module and must stay fast
(a test measures it).
"""

from __future__ import annotations

from typing import Annotated

import typer

from transporter import __version__
from transporter.cli import (
    ack,
    adaptors,
    audit,
    cdc,
    check,
    compare,
    doctor,
    dry_run,
    init,
    log,
    offsets,
    outbox,
    parked,
    plan,
    query,
    queue,
    quickstart,
    reader,
    reload,
    replay,
    route,
    run,
    schema,
    shell,
    status,
    test,
    top,
)
from transporter.cli.command_group import add_command, show_help
from transporter.cli.output import write


def build() -> typer.Typer:
    """Build the command line's application."""
    # rich would take longer than all the rest of `--help`.
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True)(_root)
    add_command(app, "run", run.run)
    add_command(app, "quickstart", quickstart.quickstart)
    app.add_typer(init.build(), name="init")
    add_command(app, "check", check.check)
    add_command(app, "doctor", doctor.doctor)
    add_command(app, "plan", plan.plan)
    add_command(app, "schema", schema.schema)
    add_command(app, "test", test.test)
    add_command(app, "dry-run", dry_run.dry_run)
    add_command(app, "compare", compare.compare)
    add_command(app, "status", status.status)
    add_command(app, "top", top.top)
    add_command(app, "query", query.query)
    add_command(app, "shell", shell.shell)
    add_command(app, "ack", ack.ack)
    add_command(app, "replay", replay.replay)
    add_command(app, "reload", reload.reload)
    add_command(app, "audit", audit.audit)
    app.add_typer(reader.build(), name="reader")
    app.add_typer(route.build(), name="route")
    app.add_typer(log.build(), name="log")
    app.add_typer(offsets.build(), name="offsets")
    app.add_typer(parked.build(), name="parked")
    app.add_typer(queue.build(), name="queue")
    app.add_typer(outbox.build(), name="outbox")
    app.add_typer(cdc.build(), name="cdc")
    app.add_typer(adaptors.build(), name="adaptors")
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
