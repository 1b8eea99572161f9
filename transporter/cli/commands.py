"""The tree of commands.

A command is a plain function in a module of its own that raises
:class:`~transporter.errors.TransporterError` and imports what is heavy inside
its body: importing every command module must cost next to nothing, because
``transporter --help`` does just that (a test watches over it).
"""

from __future__ import annotations

from typing import Annotated

import typer

from transporter import __version__
from transporter.cli import (
    ack,
    adaptors,
    audit,
    check,
    dry_run,
    init,
    log,
    offsets,
    outbox,
    parked,
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
from transporter.cli.groups import show_help
from transporter.cli.output import write


def build() -> typer.Typer:
    """Put the commands together."""
    # rich would cost more time than all the rest of `--help`.
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True)(_root)
    app.command("run")(run.run)
    app.command("quickstart")(quickstart.quickstart)
    app.add_typer(init.build(), name="init")
    app.command("check")(check.check)
    app.command("schema")(schema.schema)
    app.command("test")(test.test)
    app.command("dry-run")(dry_run.dry_run)
    app.command("status")(status.status)
    app.command("top")(top.top)
    app.command("query")(query.query)
    app.command("shell")(shell.shell)
    app.command("ack")(ack.ack)
    app.command("replay")(replay.replay)
    app.command("reload")(reload.reload)
    app.command("audit")(audit.audit)
    app.add_typer(reader.build(), name="reader")
    app.add_typer(route.build(), name="route")
    app.add_typer(log.build(), name="log")
    app.add_typer(offsets.build(), name="offsets")
    app.add_typer(parked.build(), name="parked")
    app.add_typer(queue.build(), name="queue")
    app.add_typer(outbox.build(), name="outbox")
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
