"""The command ``transporter``: its commands, and the one place where errors become exit codes.

A command is a plain function in a module of its own that raises
:class:`~transporter.errors.TransporterError` and imports what is heavy inside
its body: importing every command module must cost next to nothing, for
``transporter --help`` does just that (a test watches over it).

Exit codes: 0 done, 1 it failed while running, 2 configuration or usage, 3 the
environment, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING, Annotated, Final

import typer

from transporter import __version__
from transporter.cli import (
    ack,
    adaptors,
    check,
    dry_run,
    init,
    log,
    offsets,
    outbox,
    parked,
    queue,
    quickstart,
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
from transporter.cli.output import write, write_error
from transporter.errors import ConfigError, EnvironmentFault, TransporterError

if TYPE_CHECKING:
    from collections.abc import Sequence

DEBUG: Final = "TRANSPORTER_DEBUG"
_INTERRUPTED: Final = 130


class UsageError(ConfigError):
    """The command line cannot be understood."""


class InternalError(TransporterError):
    """Something that transporter did not foresee."""


def main() -> None:
    """Run the command line of this process and exit with its code."""
    code = execute(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the results has gone; keep the interpreter from trying again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or 1
    sys.exit(code)


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
    app.command("shell")(shell.shell)
    app.command("ack")(ack.ack)
    app.command("replay")(replay.replay)
    app.command("reload")(reload.reload)
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


def execute(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; report what goes wrong."""
    try:
        code = build()(list(arguments), standalone_mode=False, prog_name="transporter")
    except typer.TyperException as error:
        failure: TransporterError = UsageError(_usage(error))
    except TransporterError as error:
        failure = error
        _trace()
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        failure = EnvironmentFault(f"{place}{error.strerror or type(error).__name__}")
        _trace()
    except Exception as error:  # noqa: BLE001 - the last resort, and it says so
        failure = InternalError(_bug(error))
        _trace()
    else:
        return code if isinstance(code, int) else 0
    write_error(failure, as_json="--json" in arguments)
    return failure.exit_code


def _usage(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "transporter"
    return f"{error.format_message()} Try '{command} --help'."


def _bug(error: Exception) -> str:
    """Say where *error* came from, but not its text: it may hold a secret (Invariant 20)."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(frame.filename)}:{frame.lineno}"  # noqa: PTH119 - text only
    return (
        f"this is a bug in transporter: {type(error).__name__} at {place};"
        f" run again with {DEBUG}=1 for the traceback, and please report it"
    )


def _trace() -> None:
    if os.environ.get(DEBUG) == "1":
        traceback.print_exc()


if __name__ == "__main__":
    main()
