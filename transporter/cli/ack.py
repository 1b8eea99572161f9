"""Command ``transporter ack``, which settles entries without delivering them."""

from __future__ import annotations

from typing import Annotated

import typer

from transporter.cli.action_options import Reason, RouteName, perform_request, report_result
from transporter.cli.log_target import AsJson, Target, offset_range
from transporter.control.requests import Ack


def ack(
    target: Target,
    route: RouteName,
    offsets: Annotated[str, typer.Argument(help="Offset, or range of offsets.", metavar="X..Y")],
    *,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Settle entries without delivering them.

    Works with a running engine, whatever its sink is doing, and without one. A route
    that has halted at these entries continues behind them.

    Example:
        transporter ack pipeline.yaml events 14 --reason "broken order, ticket 7"
    """
    first, last = offset_range(offsets)
    result = perform_request(target, Ack(route, first, last, reason))
    report_result(result, as_json=as_json, later=False)
