"""The table of ``run`` and ``top``, with fitting columns, one line a row, and notes below."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console, Group

from transporter.cli.status_table import COLUMNS, Rates, fitting_columns, live_rows, status_table

LONG = "orders-to-the-data-warehouse"
READER = {
    "name": "shop",
    "adaptor": "postgres-outbox",
    "state": "running",
    "logged": 1_234_567,
    "measured": {"backlog_messages": 12.0, "lag_seconds": 3.0},
}


def route(name: str = LONG, **fields: Any) -> dict[str, Any]:
    """Return a route's part of a status."""
    return {
        "name": name,
        "adaptor": "kafka",
        "state": "retrying",
        "delivered": 1_234_000,
        "skipped": 5,
        "watermark": 1_234_005,
        "lag": 562,
        "parked": 3,
        "problem": "",
        "paused": False,
        "step": None,
        "next": 1_234_006,
        "replay": None,
        "retries": 0,
        "waiting": {"since": 30.0, "left": 5.0},
        **fields,
    }


def drawn(width: int, height: int = 40, *routes: dict[str, Any]) -> list[str]:
    """Return the lines of the table on a terminal of this size."""
    rows = live_rows({"readers": [READER], "routes": routes or [route()]}, Rates())
    screen = StringIO()
    console = Console(file=screen, width=width, height=height, color_system=None)
    console.print(Group(*status_table(rows, width, height)))
    return screen.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120, 160, 200])
def test_no_row_is_broken(width: int) -> None:
    """At any usual width each row is one line with its whole name, its state and its lag."""
    lines = drawn(width)
    assert max(map(len, lines)) <= width
    (row,) = [line for line in lines if line.lstrip().startswith(f"route {LONG} ")]
    assert {"retrying", "562"} <= set(row.split())
    assert not any("…" in line for line in lines)


def test_a_wide_terminal_has_every_column() -> None:
    """At 160 columns nothing is left out, and at 80 the important columns are there."""
    wide, narrow = drawn(160), drawn(80)
    header = next(line for line in wide if "state" in line)
    assert [name for name in COLUMNS if name and name not in header] == []
    assert any("failing for 30 s, next try in 5 s" in line for line in wide)
    header = next(line for line in narrow if "state" in line)
    assert [name for name in COLUMNS if name in header and name] == [
        "state",
        "per second",
        "lag",
        "parked",
    ]
    assert f"route {LONG}: failing for 30 s, next try in 5 s" in [line.strip() for line in narrow]


def test_a_terminal_too_narrow_for_a_name_cuts_it() -> None:
    """A name is cut if it does not fit with state and lag, and the row stays one line."""
    lines = drawn(40)
    assert max(map(len, lines)) <= 40
    assert sum("route orders" in line for line in lines) == 1 + 1  # Its row and its note.


def test_more_rows_than_lines() -> None:
    """Rows without room are counted, so that the lines around the table stay on the screen."""
    lines = drawn(80, 20, *(route(f"r{number}", waiting=None) for number in range(40)))
    assert len(lines) <= 20
    shown = sum(line.lstrip().startswith(("route", "reader")) for line in lines)
    assert f"… {41 - shown} more" in [line.strip() for line in lines]


def test_more_notes_than_lines() -> None:
    """Long problems leave room for rows, and notes without room are counted."""
    lines = drawn(80, 24, *(route(f"r{n}", problem="no " * 60) for n in range(9)))
    assert len(lines) <= 24
    assert sum(line.lstrip().startswith("route r") for line in lines) > 8
    assert any("more notes" in line for line in lines)


def test_a_log_without_an_engine() -> None:
    """Counts of an engine are empty without one, not zero."""
    found = {
        key: value
        for key, value in route(waiting=None, state="not running").items()
        if key not in ("adaptor", "delivered", "skipped", "problem")
    }
    (row,) = live_rows({"readers": [], "routes": [found]}, Rates())
    assert [row.cells[name] for name in ("adaptor", "total", "per second", "skipped")] == [""] * 4
    assert (row.cells["lag"], row.cells["state"]) == ("562", "not running")


def test_what_comes_from_elsewhere_is_harmless() -> None:
    """No text of an error or a namespace moves the cursor."""
    replay = {"next": 1, "last": 2, "namespace": "\x1b[2J"}
    rows = live_rows({"readers": [], "routes": [route(replay=replay, problem="\x1b]0;x")]}, Rates())
    assert "\x1b" not in "".join([*rows[0].cells.values(), *rows[0].notes])


def test_the_first_columns_to_go() -> None:
    """A slightly narrower terminal drops one column, not all."""
    rows = live_rows({"readers": [READER], "routes": [route()]}, Rates())
    whole = fitting_columns(rows, 500)
    assert whole == list(COLUMNS)
    needed = max(width for width in range(500) if fitting_columns(rows, width) != whole)
    assert fitting_columns(rows, needed) == [name for name in COLUMNS if name != "adaptor"]
