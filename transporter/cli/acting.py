"""What commands that change something share: their options, how they are done and reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from transporter.cli.output import printable, write, write_json
from transporter.cli.target import log_directory

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.control.requests import Request

RouteName = Annotated[str, typer.Argument(help="The route's name.", metavar="ROUTE")]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept in the audit file.")]


def act(target: Path, request: Request) -> dict[str, Any]:
    """Have *request* carried out: by the running engine, or under the log's lock."""
    from transporter.control.client import perform  # noqa: PLC0415 - only commands that act

    return perform(log_directory(target), request)


def report(result: dict[str, Any], *, as_json: bool) -> None:
    """Tell what an action has come to."""
    if as_json:
        write_json(result)
        return
    kinds = (each for each in ("route", "reader") if each in result)
    named = "".join(f"{kind} {printable(result[kind])}: " for kind in kinds)
    mark = f"; watermark {result['watermark']}" if "watermark" in result else ""
    later = "" if result["live"] else " (no engine runs: the next run finds it so)"
    write(f"{named}{printable(result['done'])}{mark}{later}")
