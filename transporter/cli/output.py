"""How results and errors reach the user: text for people, one JSON object with ``--json``.

Results go to stdout, errors to stderr; with ``--json`` both go to stdout as one
object and nothing else does. Nothing here is imported before it is needed, so
that ``--help`` stays fast.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transporter.errors import TransporterError


def printable(text: object) -> str:
    """Return *text* with control and other unprintable characters escaped.

    For whatever came from messages, files or other systems: it can neither move
    the cursor nor forge lines.
    """
    return "".join(
        letter
        if letter.isprintable()
        else letter.encode("unicode_escape", "surrogatepass").decode("ascii")
        for letter in str(text)
    )


def write(line: str = "") -> None:
    """Print one line of a result to stdout."""
    sys.stdout.write(f"{line}\n")


def write_json(result: object) -> None:
    """Print *result* as the one object of ``--json``; paths and the like become text."""
    _write_object({"ok": True, "result": result})


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: drawn by rich on a terminal (``NO_COLOR`` respected), else aligned text.

    Cells are made :func:`printable`.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(columns, cells)
    else:
        for line in aligned([[column.upper() for column in columns], *cells]):
            write(line)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return *rows* (of equal length) as lines with their columns under one another."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _rich_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - only for a table on a terminal
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415 - as text, cells hold no markup

    drawn = Table(*columns, box=SIMPLE_HEAD)
    for row in rows:
        drawn.add_row(*map(Text, row))
    Console(file=sys.stdout).print(drawn)


def write_error(error: TransporterError, *, as_json: bool) -> None:
    """Report *error*: as text to stderr, or as the one object of ``--json``."""
    if as_json:
        _write_object({"ok": False, "error": _error_object(error)})
        return
    lines = [printable(line) for line in str(error).split("\n")]
    mark = "" if getattr(error, "file", "") else "error: "
    sys.stderr.write("".join(f"{mark}{line}\n" for line in lines))


def _error_object(error: TransporterError) -> dict[str, Any]:
    found = {
        "type": type(error).__name__,
        "message": str(error),
        "file": getattr(error, "file", None) or None,
        "line": getattr(error, "line", None) or None,
        "exit_code": error.exit_code,
    }
    problems = getattr(error, "problems", None)
    if problems is not None:
        found["problems"] = [
            {"message": each.problem, "file": each.file, "line": each.line} for each in problems
        ]
    return found


def _write_object(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content, default=str) + "\n")
