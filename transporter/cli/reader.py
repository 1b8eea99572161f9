"""Commands ``transporter reader``: pause, resume and restart a reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from transporter.cli.action_options import Reason, perform_request, report_result
from transporter.cli.command_group import command_group
from transporter.cli.entry_output import note
from transporter.cli.log_target import AsJson, Target  # noqa: TC001 - typer evaluates them
from transporter.cli.output import problem_text
from transporter.control.requests import PauseReader, RestartReader, ResumeReader

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.control.requests import Request

ReaderName = Annotated[str, typer.Argument(help="Reader's name.", metavar="READER")]


def build() -> typer.Typer:
    """Build the group."""
    return command_group(
        "Pause, resume or restart a reader.", pause=pause, resume=resume, restart=restart
    )


def pause(
    target: Target, reader: ReaderName, *, reason: Reason = "", as_json: AsJson = False
) -> None:
    """Close a reader until it is resumed.

    The pause survives restarts of the engine. All polled messages are appended first.
    Routes and other readers continue.

    Example:
        transporter reader pause pipeline.yaml orders --reason "upgrade"
    """
    _perform_and_report(target, PauseReader(reader, reason), as_json=as_json)


def resume(
    target: Target, reader: ReaderName, *, reason: Reason = "", as_json: AsJson = False
) -> None:
    """Reopen a paused or waiting reader.

    A reader that waits for its source retries at once.

    Example:
        transporter reader resume pipeline.yaml orders
    """
    _perform_and_report(target, ResumeReader(reader, reason), as_json=as_json)


def restart(
    target: Target, reader: ReaderName, *, reason: Reason = "", as_json: AsJson = False
) -> None:
    """Close a reader and open it again.

    It also restarts a reader that has stopped at an error.

    Example:
        transporter reader restart pipeline.yaml orders
    """
    _perform_and_report(target, RestartReader(reader, reason), as_json=as_json)


def _perform_and_report(target: Path, request: Request, *, as_json: bool) -> None:
    result = perform_request(target, request)
    report_result(result, as_json=as_json, later=result["done"] in ("paused", "resumed"))
    if as_json or not result["live"]:
        return
    if not result["in_effect"]:
        note("the change is not in effect yet; 'transporter status' shows the reader's state")
    if result["problem"]:
        note(problem_text(f"the reader is {result['state']}: {result['problem']}"))
