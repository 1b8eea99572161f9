"""``transporter reader``: pause, resume and restart a reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from transporter.cli.acting import Reason, act, report
from transporter.cli.groups import group
from transporter.cli.log_entries import note
from transporter.cli.output import printable
from transporter.cli.target import AsJson, Target  # noqa: TC001 - typer evaluates them
from transporter.control.requests import PauseReader, RestartReader, ResumeReader

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.control.requests import Request

ReaderName = Annotated[str, typer.Argument(help="The reader's name.", metavar="READER")]


def build() -> typer.Typer:
    """Put the group together."""
    return group("Pause, resume or restart a reader.", pause=pause, resume=resume, restart=restart)


def pause(
    target: Target, reader: ReaderName, *, reason: Reason = "", as_json: AsJson = False
) -> None:
    """Close a reader until it is resumed; it stays so over restarts.

    All that it has polled is appended first. Routes and other readers go on.

    Example: transporter reader pause pipeline.yaml orders --reason "database upgrade"
    """
    _operate(target, PauseReader(reader, reason), as_json=as_json)


def resume(
    target: Target, reader: ReaderName, *, reason: Reason = "", as_json: AsJson = False
) -> None:
    """Open a paused reader again, or have one that waits for its source try at once.

    Example: transporter reader resume pipeline.yaml orders
    """
    _operate(target, ResumeReader(reader, reason), as_json=as_json)


def restart(
    target: Target, reader: ReaderName, *, reason: Reason = "", as_json: AsJson = False
) -> None:
    """Close a reader and open it again, also one that has stopped at an error.

    Example: transporter reader restart pipeline.yaml orders
    """
    _operate(target, RestartReader(reader, reason), as_json=as_json)


def _operate(target: Path, request: Request, *, as_json: bool) -> None:
    result = act(target, request)
    report(result, as_json=as_json)
    if as_json or not result["live"]:
        return
    if not result["in_effect"]:
        note("it is not in effect yet; 'transporter status' shows what the reader is doing")
    if result["problem"]:
        note(printable(f"the reader is {result['state']}: {result['problem']}"))
