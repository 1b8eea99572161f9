"""The command ``transporter``, which turns errors into exit codes.

Exit codes: 0 done, 1 failed while running, 2 configuration or usage, 3 environment,
130 interrupted.

The commands are imported after :func:`main` has begun, so that ``transporter run``
handles signals before any slow import.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Final

from transporter.errors import ConfigError, EnvironmentFault, TransporterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import typer

DEBUG: Final = "TRANSPORTER_DEBUG"
_INTERRUPTED: Final = 130
_STOPPABLE: Final = "run"
"""The command that a signal ends with exit code 0 at any moment."""
_STOPS: Final = (signal.SIGINT, signal.SIGTERM)


class UsageError(ConfigError):
    """A command line that cannot be parsed."""


class InternalError(TransporterError):
    """An unexpected error, which is a bug in transporter."""


def main() -> None:
    """Run this process's command line and exit with its code."""
    _open_missing_streams()
    arguments = sys.argv[1:]
    stoppable = arguments[:1] == [_STOPPABLE]
    if stoppable:
        _exit_on_signals()
    sys.unraisablehook = _interrupt_again
    code = execute(arguments)
    if stoppable:
        # The rest of this process ends by itself, with the code of the run.
        for number in _STOPS:
            signal.signal(number, signal.SIG_IGN)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the results has gone. Keep the interpreter from flushing again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or 1
    sys.exit(code)


def _open_missing_streams() -> None:
    """Open ``/dev/null`` for each standard stream that the caller has closed.

    Otherwise the first file that is opened would be taken for it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # The lowest number that is free.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003 - as it is called
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 - a descriptor


def _exit_on_signals() -> None:
    """Exit at once with code 0 on SIGINT and SIGTERM, until the run installs its own handlers.

    Nothing is open before that, so nothing needs closing. A signal during the start of
    Python itself, some 20 ms, ends the process as it ends any other.
    """
    for number in _STOPS:
        signal.signal(number, lambda *_: os._exit(0))


def _interrupt_again(ignored: sys.UnraisableHookArgs) -> None:
    """Repeat an interrupt that came inside a finaliser, where Python drops it."""
    if ignored.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(ignored)
        return
    # Later than this function ends, which would drop it as well.
    again = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    again.daemon = True
    try:
        again.start()
    except KeyboardInterrupt:
        _interrupt_again(ignored)


def execute(arguments: Sequence[str]) -> int:
    """Run one command line, report its error if any, and return its exit code."""
    try:
        import typer  # noqa: PLC0415 - takes longer than Python itself; see main()

        from transporter.cli.commands import build  # noqa: PLC0415 - the same
        from transporter.cli.output import write_error  # noqa: PLC0415 - the same

        # It imports the command. None has the empty name, which stands for all of them.
        app = build(next(iter(arguments), ""))
    except ImportError as error:
        return _report_broken_installation(error)
    try:
        code = app(list(arguments), standalone_mode=False, prog_name="transporter")
    except typer.TyperException as error:
        failure: TransporterError = UsageError(_usage_text(error))
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last resort
        failure = failure_of(error)
        _print_traceback()
    else:
        return code if isinstance(code, int) else 0
    write_error(failure, as_json="--json" in arguments)
    return failure.exit_code


def failure_of(error: Exception) -> TransporterError:
    """Return *error* as users see it: as it is, a fault of the environment, or a bug."""
    if isinstance(error, TransporterError):
        return error
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return EnvironmentFault(f"{place}{error.strerror or type(error).__name__}")
    return InternalError(_bug_text(error))


def _report_broken_installation(error: ImportError) -> int:
    """Report that a module is missing, or that a foreign distribution has overwritten it."""
    from transporter.distribution import broken_installation_text  # noqa: PLC0415 - only here

    _print_traceback()
    sys.stderr.write(f"error: {broken_installation_text(error)}\n")
    return EnvironmentFault.exit_code


def _usage_text(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "transporter"
    return f"{error.format_message()} Try '{command} --help'."


def _bug_text(error: Exception) -> str:
    """Return the place where *error* was raised, without its text.

    The text may hold a secret (Invariant 20).
    """
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(frame.filename)}:{frame.lineno}"  # noqa: PTH119 - text only
    return (
        f"this is a bug in transporter: {type(error).__name__} at {place};"
        f" run again with {DEBUG}=1 for the traceback, and please report it"
    )


def _print_traceback() -> None:
    if os.environ.get(DEBUG) == "1":
        traceback.print_exc()


if __name__ == "__main__":
    main()
