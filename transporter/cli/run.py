"""``transporter run``: run a pipeline until it is stopped or its sources end."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transporter.cli.output import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from transporter.engine.engine import Engine
    from transporter.pipeline.config import Pipeline

TICK = 0.25
"""Seconds between two looks at the engine: how often the live table moves."""


class LogFormat(StrEnum):
    """How log lines are written."""

    TEXT = "text"
    JSON = "json"


def run(
    pipeline: Annotated[Path, typer.Argument(help="The pipeline file.", metavar="PIPELINE")],
    *,
    log_format: Annotated[
        LogFormat, typer.Option(help="How log lines on stderr are written.")
    ] = LogFormat.TEXT,
    live: Annotated[
        bool | None,
        typer.Option("--live/--no-live", help="A live table; by default on a terminal only."),
    ] = None,
) -> int:
    """Run a pipeline until Ctrl-C or SIGTERM, or until its sources end.

    The first signal drains what is in the log within shutdown_timeout; the
    second leaves at once, and the slices in flight are repeated at the next start.
    """
    from transporter.pipeline.config import load  # noqa: PLC0415 - heavy; `--help` does without

    return run_pipeline(load(pipeline, os.environ), log_format=log_format.value, live=live)


def run_pipeline(pipeline: Pipeline, *, log_format: str = "text", live: bool | None = None) -> int:
    """Run *pipeline* to its end and return the exit code."""
    from transporter.cli.live import reporter  # noqa: PLC0415 - imports rich and structlog
    from transporter.engine.engine import Engine  # noqa: PLC0415
    from transporter.spark.launch import SparkLauncher  # noqa: PLC0415

    launcher = SparkLauncher(
        pipeline.log.dir, cache_directory(), pipeline.spark.master, pipeline.spark.config
    )
    with reporter(log_format, live=live, hints=_hints(pipeline.log.dir)) as report:
        engine = Engine(pipeline, launcher, report)
        with _signals(engine.request_stop):
            _until_stopped(engine, report)
    status = engine.status()
    for reader in status.readers:
        if reader.name in engine.halted:
            typer.echo(printable(f"reader {reader.name} stopped: {reader.problem}"), err=True)
    for route in status.routes:
        if route.name in engine.halted:
            place = f"route {route.name} stopped before offset {route.watermark + 1}"
            typer.echo(printable(f"{place}: {route.problem}"), err=True)
    return 1 if engine.halted else 0


def _until_stopped(engine: Engine, report: Any) -> None:  # noqa: ANN401 - the reporter
    engine.start()
    try:
        while not engine.wait(TICK):
            report.show(engine.status())
    finally:
        report.show(engine.status(), "stopping")
        engine.stop()
        report.show(engine.status(), "stopped")


def _hints(directory: Path) -> str:
    """Return what somebody who watches may want to try next, ready to be copied."""
    me = sys.argv[0]
    command = "transporter" if shutil.which("transporter") == me else _short(Path(me))
    log = _short(directory)
    tries = (f"log show {log} --last 5", f"offsets list {log}", f"log info {log}")
    return "\n".join(["in another terminal, try:", *(f"  {command} {each}" for each in tries)])


def _short(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def cache_directory() -> Path:
    """Return where generated files of this user are kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "transporter"


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call *stop* at the first SIGINT or SIGTERM; leave at once at the second."""
    seen: list[int] = []

    def received(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        if len(seen) > 1:
            # The Spark host sees its connection close, and ends with all its workers.
            os._exit(128 + number)
        stop()

    former = {number: signal.signal(number, received) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
