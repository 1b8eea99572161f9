"""Options, execution and report of the commands that change something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from transporter.cli.log_target import log_directory
from transporter.cli.output import printable, problem_text, write, write_json

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.control.requests import Request

RouteName = Annotated[str, typer.Argument(help="Route's name.", metavar="ROUTE")]
Reason = Annotated[str, typer.Option("--reason", help="Reason for the change, for the audit file.")]


def perform_request(target: Path, request: Request) -> dict[str, Any]:
    """Perform *request* in the running engine, or under the log's lock without one."""
    from transporter.control.client import perform  # noqa: PLC0415 - only commands that act

    return perform(log_directory(target), request)


def report_result(result: dict[str, Any], *, as_json: bool, later: bool = True) -> None:
    """Print the *result* of an action.

    Without an engine it takes effect at the next run, unless *later* is false.
    """
    if as_json:
        write_json(result)
        return
    kinds = (each for each in ("route", "reader") if each in result)
    named = "".join(f"{kind} {printable(result[kind])}: " for kind in kinds)
    mark = f"; watermark {result['watermark']}" if "watermark" in result else ""
    remark = " (no engine runs: the next run applies it)" if later and not result["live"] else ""
    write(f"{named}{problem_text(result['done'])}{mark}{remark}")


def progress_question(action: str, route: str, watermark: int) -> str:
    """Return the question whether to lose the progress of *route*."""
    through = f", up to offset {watermark}" if watermark >= 0 else ", which has settled no entry"
    return f"{action} the progress of route {printable(route)}{through}?"


def parse_wait(text: str) -> float:
    """Return the seconds of the option ``--wait``, or raise a usage error."""
    from transporter.units import parse_duration  # noqa: PLC0415 - imports pydantic

    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"--wait {text!r} {error}") from error
