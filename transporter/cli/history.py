"""Command ``transporter history``: the last half hour of each reader and route."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from transporter.cli.action_options import perform_request
from transporter.cli.entry_output import note
from transporter.cli.log_target import AsJson, Target  # noqa: TC001 - Typer reads the annotations at run time
from transporter.cli.output import printable, write_json, write_table
from transporter.control.history_rates import known_counts
from transporter.control.requests import History
from transporter.errors import UnknownName

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COLUMNS: Final = ("", "count", "now", "most", "last 30 min")
WIDTH: Final = 60
"""Characters of a sparkline."""
_BARS: Final = "▁▂▃▄▅▆▇█"
_POINTS: Final = 360


def history(
    target: Target,
    *,
    route: Annotated[str, typer.Option("--route", help="Only this route.", metavar="ROUTE")] = "",
    as_json: AsJson = False,
) -> None:
    """Show half an hour of readers and routes.

    A running engine keeps a point every 5 seconds: entries logged or delivered, lag and
    parked entries. The table has rates for the first two, and the largest value of each
    30 seconds for the others. The history begins anew with each start.

    Example:
        transporter history pipeline.yaml --route events
    """
    found = perform_request(target, History(route))
    if route and not found["series"] and f"route {route}" not in found["left_out"]:
        raise UnknownName(
            f"the engine has no history of a route {route!r}; it takes the first point 5 seconds "
            "after its start, and 'transporter status' lists the routes"
        )
    if as_json:
        write_json(found)
        return
    write_table(COLUMNS, _rows(found))
    if found["left_out"]:
        names = ", ".join(map(printable, found["left_out"]))
        note(f"there was no room for the history of {names}")


def _rows(found: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    last = ""
    for count in known_counts(found):
        title = f"{count.kind} {count.name}"
        unit = "/s" if count.is_rate else ""
        newest, most = count.values[-1], max(each for each in count.values if each is not None)
        now = "" if newest is None else f"{newest:,.0f}{unit}"
        shown = "" if title == last else title
        yield shown, count.what, now, f"{most:,.0f}{unit}", sparkline(count.values)
        last = title


def sparkline(values: Sequence[float | None], points: int = _POINTS, width: int = WIDTH) -> str:
    """Return *values*, the newest of *points*, as a line of *width* bars.

    A bar is the largest of its values, and a space has none. Zero is the lowest bar.
    """
    padded = [None] * (points - len(values)) + list(values)[-points:]
    size = points // width
    bars = [
        max((each for each in padded[place : place + size] if each is not None), default=None)
        for place in range(0, points, size)
    ]
    most = max((each for each in bars if each is not None), default=0)
    return "".join(" " if each is None else _BARS[_height(each, most)] for each in bars)


def _height(value: float, most: float) -> int:
    """Return the bar of *value*: the lowest for nothing only, the highest for *most*."""
    if value <= 0:
        return 0
    return max(1, round(value / most * (len(_BARS) - 1)))
