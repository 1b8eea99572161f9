"""``transporter ack``: settle entries without delivering them."""

from __future__ import annotations

from typing import Annotated

import typer

from transporter.cli.acting import Reason, RouteName, act, report
from transporter.cli.target import AsJson, Target, offset_range
from transporter.control.requests import Ack


def ack(
    target: Target,
    route: RouteName,
    offsets: Annotated[str, typer.Argument(help="An offset, or a range.", metavar="X..Y")],
    *,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Mark entries as settled for a route without delivering them.

    Works on a running engine, whatever its sink is doing, and without one. A route
    that had halted there goes on behind.

    Example: transporter ack pipeline.yaml events 14 --reason "broken order, see ticket 7"
    """
    first, last = offset_range(offsets)
    report(act(target, Ack(route, first, last, reason)), as_json=as_json)
