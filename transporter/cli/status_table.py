"""Table of readers and routes for ``run`` and ``top``, with one line for each."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from transporter.cli.output import printable, problem_text
from transporter.control.status_texts import activity, source_lag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COLUMNS: Final = (
    "",
    "adaptor",
    "state",
    "total",
    "per second",
    "watermark",
    "lag",
    "parked",
    "skipped",
    "doing",
)
_DISPENSABLE: Final = ("adaptor", "watermark", "skipped", "doing", "total", "parked", "per second")
"""Columns that a narrow terminal leaves out, in this order."""
_TEXTUAL: Final = ("", "adaptor", "state", "doing")
_BETWEEN: Final = 2
"""Blanks between two columns."""
_FRAME: Final = 2
"""Lines of a table beside its rows."""
_COLOURS: Final = {
    "running": "green",
    "ended": "blue",
    "starting": "cyan",
    "retrying": "yellow",
    "waiting": "yellow",
    "paused": "magenta",
    "candidate": "cyan",
    "stopped": "red",
}


class Rates:
    """Rates of growing counts over the last few seconds. Reads no clock."""

    def __init__(self, window: float = 3.0) -> None:
        """Measure over *window* seconds."""
        self._window = window
        self._points: dict[str, list[tuple[float, int]]] = {}

    def rate(self, name: str, count: int, now: float) -> float | None:
        """Record the *count* of *name* at the time *now*, and return its rate per second.

        One count has none.
        """
        seen = self._points.setdefault(name, [])
        seen.append((now, count))
        while len(seen) > 2 and now - seen[1][0] >= self._window:  # noqa: PLR2004 - two points make a rate
            seen.pop(0)
        start, before = seen[0]
        return (count - before) / (now - start) if now > start else None


@dataclass(frozen=True, slots=True)
class StatusRow:
    """Row of a reader or a route, with ``cells`` by column and ``numbers`` to sort by."""

    name: str
    cells: Mapping[str, str]
    numbers: Mapping[str, float]
    problem: str

    @property
    def notes(self) -> list[str]:
        """The lines below the table that belong to this row."""
        return [f"{self.name}: {self.problem}"] if self.problem else []


def live_rows(found: Mapping[str, Any], rates: Rates) -> list[StatusRow]:
    """Return a row for each reader and route of the status *found*, with its present rate."""
    now = time.monotonic()
    rows = [_reader_row(each, rates, now) for each in found["readers"]]
    return rows + [_route_row(each, rates, now) for each in found["routes"]]


def _reader_row(reader: Mapping[str, Any], rates: Rates, now: float) -> StatusRow:
    measured = reader.get("measured", {})
    backlog = source_lag(measured)
    lag = measured.get("backlog_messages", 0.0)
    return _status_row(
        "reader", reader, reader["logged"], {"lag": backlog}, {"lag": lag}, rates, now
    )


def _route_row(route: dict[str, Any], rates: Rates, now: float) -> StatusRow:
    # Without an engine there are no counts of a run.
    numbers = {name: route.get(name) for name in ("watermark", "lag", "parked", "skipped")}
    cells = {name: _number_text(number) for name, number in numbers.items()} | {
        "doing": activity(route)
    }
    known = {name: float(number or 0) for name, number in numbers.items()}
    return _status_row("route", route, route.get("delivered"), cells, known, rates, now)


def _status_row(
    kind: str,
    part: Mapping[str, Any],
    total: int | None,
    cells: Mapping[str, str],
    numbers: Mapping[str, float],
    rates: Rates,
    now: float,
) -> StatusRow:
    name = f"{kind} {part['name']}"
    rate = None if total is None else rates.rate(name, total, now)
    shown = {
        "": name,
        "adaptor": part.get("adaptor", ""),
        "state": part["state"],
        "total": _number_text(total),
        "per second": "" if rate is None else f"{rate:,.0f}",
        **cells,
    }
    return StatusRow(
        name,
        {column: printable(shown.get(column, "")) for column in COLUMNS},
        {"total": float(total or 0), "per second": rate or 0.0, **numbers},
        problem_text(part.get("problem", "")),
    )


def _number_text(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def status_table(rows: Sequence[StatusRow], width: int, height: int) -> list[Table | Text]:
    """Return *rows* as a table of *width* columns, and notes below it, in *height* lines.

    Each cell is one line. Columns that do not fit are left out. A route's activity then
    goes below the table.
    """
    columns = fitting_columns(rows, width)
    notes = _limit_notes(
        [note for row in rows for note in _row_notes(row, columns)], width, height // 3
    )
    most = max(1, height - _FRAME - sum(_line_count(note, width) for note in notes))
    hidden = len(rows) - most
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        side = "left" if column in _TEXTUAL else "right"
        table.add_column(column, justify=side, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    for row in rows if hidden <= 0 else rows[: most - 1]:
        table.add_row(*(_styled_cell(column, row.cells[column]) for column in columns))
    more = [Text(f"… {hidden + 1} more", style="dim")] if hidden > 0 else []
    return [table, *more, *(Text(note, style="yellow") for note in notes)]


def _limit_notes(notes: Sequence[str], width: int, height: int) -> list[str]:
    """Return as many of *notes* as fit, at least one, and a line with the number left out."""
    shown: list[str] = []
    lines = 0
    for note in notes:
        lines += _line_count(note, width)
        if shown and lines >= height:
            return [*shown, f"… {len(notes) - len(shown)} more notes"]
        shown.append(note)
    return shown


def _line_count(text: str, width: int) -> int:
    return -(-len(text) // width)


def fitting_columns(rows: Sequence[StatusRow], width: int) -> list[str]:
    """Return the columns that fit into *width*, in their order."""
    columns = list(COLUMNS)
    widths = {
        column: max(map(len, (column, *(row.cells[column] for row in rows)))) for column in COLUMNS
    }
    for column in _DISPENSABLE:
        if sum(widths[each] + _BETWEEN for each in columns) - _BETWEEN <= width:
            break
        columns.remove(column)
    return columns


def _row_notes(row: StatusRow, columns: Sequence[str]) -> list[str]:
    doing = row.cells["doing"]
    return ([f"{row.name}: {doing}"] if doing and "doing" not in columns else []) + row.notes


def _styled_cell(column: str, text: str) -> Text:
    return Text(text, style=_COLOURS.get(text, "") if column == "state" else "")
