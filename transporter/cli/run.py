"""Command ``transporter run``, which runs a pipeline until it is stopped or its sources end."""

from __future__ import annotations

import gc
import os
import shlex
import shutil
import signal
import sys
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transporter.cli.output import problem_text
from transporter.errors import TransporterError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

    from transporter.cli.service_manager import ServiceNotifier
    from transporter.console.launcher import ConsoleLauncher
    from transporter.engine.engine import Engine
    from transporter.pipeline.config import Pipeline

TICK = 0.25
"""Seconds between two updates of the live table."""
_RELOAD_END = 5.0
"""Seconds for a reload to notice that its engine has ended."""


class LogFormat(StrEnum):
    """Format of log lines."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """Lowest level of log lines."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def run(
    pipeline: Annotated[Path, typer.Argument(help="Pipeline file.", metavar="PIPELINE")],
    *,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(
            help="Format of log lines on stderr; by default text on a terminal, else json."
        ),
    ] = None,
    log_level: Annotated[
        LogLevel, typer.Option(help="Lowest level of log lines; debug adds unchanged progress.")
    ] = LogLevel.INFO,
    live: Annotated[
        bool | None,
        typer.Option("--live/--no-live", help="Show a live table; by default on a terminal only."),
    ] = None,
    fail_fast: Annotated[
        bool,
        typer.Option(
            "--fail-fast", help="End if a source is unavailable at the start, instead of waiting."
        ),
    ] = False,
) -> int:
    """Run a pipeline until it is stopped.

    It runs until Ctrl-C or SIGTERM, or until its sources end. It retries an unavailable
    source until it answers, and reads the other sources meanwhile. The first signal
    drains the log within shutdown_timeout. The second one ends the engine at once, and
    the next start repeats the slices in flight.

    Example:
        transporter run pipeline.yaml
    """
    from transporter.distribution import refuse_other_distribution  # noqa: PLC0415 - heavy
    from transporter.pipeline.config import load  # noqa: PLC0415 - the same; `--help` does without

    refuse_other_distribution()
    chosen = log_format.value if log_format is not None else None
    return run_pipeline(
        load(pipeline, os.environ),
        os.environ,
        log_format=chosen,
        log_level=log_level.value,
        live=live,
        fail_fast=fail_fast,
    )


def run_pipeline(
    pipeline: Pipeline,
    environ: Mapping[str, str],
    *,
    log_format: str | None = None,
    log_level: str = "info",
    live: bool | None = None,
    fail_fast: bool = False,
    hints: Sequence[str] = (),
) -> int:
    """Run *pipeline* to its end and return the exit code. Its variables come from *environ*.

    *hints* are further lines for another terminal, below the live table.
    """
    from transporter.cli.run_display import (  # noqa: PLC0415 - imports rich
        engine_reporter,
        printable_output,
        unfailing_stderr,
    )
    from transporter.cli.service_manager import take_notifier  # noqa: PLC0415 - the same
    from transporter.embed import assemble_engine  # noqa: PLC0415 - imports the engine
    from transporter.process_limits import (  # noqa: PLC0415
        raise_descriptor_limit,
        switch_threads_often,
    )

    raise_descriptor_limit()
    switch_threads_often()
    # Before anything is started, so that no child inherits its variables.
    notifier = take_notifier(os.environ)

    # Before anything is opened, so that a signal always closes open parts in order.
    with _handle_signals() as signals, unfailing_stderr(), _console_of(pipeline) as console:
        if console is not None:
            name = shlex.quote(short_path(pipeline.file))
            hints = [f"  {_command()} ui --login {name}    # a link to the console", *hints]
        with (
            engine_reporter(
                log_format, live=live, hints=_hint_text(pipeline.log.dir, hints), level=log_level
            ) as report,
            printable_output(),
            assemble_engine(pipeline, report, environ, fail_fast=fail_fast) as engine,
        ):
            if console is not None:
                console.report_to(engine.observe)
                engine.attach(console)
            gc.freeze()  # Imported modules stay, so exclude them from every collection.
            _run_until_stopped(engine, report, signals, notifier)
        _report_halted(engine)
    return 1 if engine.halted else 0


@contextmanager
def _console_of(pipeline: Pipeline) -> Iterator[ConsoleLauncher | None]:
    """Yield the console's launcher, if the pipeline file has an address for it, and stop it."""
    if "console" not in pipeline.observe.model_fields_set:
        yield None
        return
    from transporter.console.launcher import ConsoleLauncher  # noqa: PLC0415 - seldom needed

    launcher = ConsoleLauncher(pipeline.file, pipeline.log.dir, pipeline.observe)
    try:
        yield launcher
    finally:
        launcher.stop()


def _report_halted(engine: Engine) -> None:
    status = engine.status()
    for reader in status.readers:
        if reader.name in engine.halted:
            typer.echo(problem_text(f"reader {reader.name} stopped: {reader.problem}"), err=True)
    for route in status.routes:
        if route.name in engine.halted:
            typer.echo(problem_text(f"route {route.name} stopped: {route.problem}"), err=True)


def _run_until_stopped(
    engine: Engine,
    report: Any,  # noqa: ANN401 - the reporter
    signals: _Signals,
    notifier: ServiceNotifier,
) -> None:
    from transporter.control.running_engine import running_status  # noqa: PLC0415 - imports the engine

    reloads: list[Thread] = []
    signals.set_stop_handler(engine.request_stop)
    try:
        if not signals.stop_reason:
            engine.start()
        while not engine.wait(TICK):
            report.show_status(running_status(engine))
            notifier.update(engine.status, engine.pipeline.observe.unready_after)
            if signals.reload_requested:
                signals.reload_requested = False
                # In a thread, because it may wait for slices and a stop must not.
                thread = Thread(target=_reload, args=(engine, notifier), name="reload", daemon=True)
                thread.start()
                reloads = [*(each for each in reloads if each.is_alive()), thread]
    finally:
        notifier.stopping(engine.pipeline.shutdown_timeout)
        try:
            # A drain may wait for workers that are still starting.
            limit = f"{engine.pipeline.shutdown_timeout:g} s"
            report.show_status(
                running_status(engine),
                f"stopping: up to {limit} for all that is logged; Ctrl-C again ends it at once",
            )
        finally:
            engine.stop()
            for each in reloads:
                # The engine has closed its connection. Nothing may be reported after the end.
                each.join(_RELOAD_END)
        report.show_status(running_status(engine), "stopped")


def _reload(engine: Engine, notifier: ServiceNotifier) -> None:
    """Reload as ``transporter reload`` does. Report a problem, with the engine left running."""
    with notifier.reloading():
        _reload_file(engine)


def _reload_file(engine: Engine) -> None:
    from transporter.cli.check_sql import refuse_invalid_sql  # noqa: PLC0415 - only on SIGHUP
    from transporter.control.client import perform  # noqa: PLC0415 - the same
    from transporter.control.requests import Reload  # noqa: PLC0415 - the same

    try:
        refuse_invalid_sql(engine.pipeline.file, os.environ, on_unchecked=lambda _: None)
        if not engine.stopping:
            perform(engine.log.directory, Reload("SIGHUP"))
    except TransporterError as error:
        if not engine.stopping:
            engine.observe("reload-refused", problem=str(error))


def _hint_text(directory: Path, others: Sequence[str] = ()) -> str:
    """Return commands to try in another terminal, ready to be copied."""
    log, command = short_path(directory), _command()
    tries = (f"log show {log} --last 5", f"offsets list {log}", f"log info {log}")
    return "\n".join(
        ["in another terminal, try:", *(f"  {command} {each}" for each in tries), *others]
    )


def _command() -> str:
    me = sys.argv[0]
    return "transporter" if shutil.which("transporter") == me else short_path(Path(me))


def short_path(path: Path) -> str:
    """Return *path* relative to the working directory, if it is inside."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


class _Signals:
    """The stops and reloads that signals have requested."""

    def __init__(self) -> None:
        self.stop_reason = ""
        """Reason for the requested stop; empty until then."""
        self.reload_requested = False
        """Set at each SIGHUP."""
        self._stopping = False
        self._stop: Callable[[str], None] | None = None
        self._has_terminal = sys.stderr.isatty()

    def set_stop_handler(self, stop: Callable[[str], None]) -> None:
        """Call *stop* with the reason at the first SIGINT or SIGTERM, or now if it has come."""
        self._stop = stop
        if self.stop_reason:
            stop(self.stop_reason)

    def on_stop(self, number: int, _frame: FrameType | None) -> None:
        """Stop in order at the first signal, and exit at once at the second."""
        if self._stopping:
            # The Spark host notices the closed connection, and ends with all its workers.
            os._exit(128 + number)
        self._stopping = True
        self._request_stop(signal.Signals(number).name)

    def on_hangup(self, _number: int, _frame: FrameType | None) -> None:
        """Reload, or stop if the signal means that the terminal was closed."""
        if self._has_terminal and not sys.stderr.isatty():
            self._request_stop("its terminal was closed")
        else:
            self.reload_requested = True

    def _request_stop(self, reason: str) -> None:
        self.stop_reason = reason
        if self._stop is not None:
            self._stop(reason)


@contextmanager
def _handle_signals() -> Iterator[_Signals]:
    """Handle SIGINT, SIGTERM and SIGHUP for the length of a block."""
    signals = _Signals()
    handlers = {
        signal.SIGINT: signals.on_stop,
        signal.SIGTERM: signals.on_stop,
        signal.SIGHUP: signals.on_hangup,
    }
    former = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield signals
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
