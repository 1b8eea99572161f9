"""``transporter audit``: the changes that were made to a log, by whom and why."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from transporter.cli.log_entries import note, time_text
from transporter.cli.output import table, write_json
from transporter.cli.target import AsJson, Target, log_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COLUMNS: Final = ("at", "who", "action", "route", "what", "reason", "outcome")
_APART: Final = {
    *("id", "at", "who", "known_by", "loginuid", "uid", "pid"),
    *("action", "route", "reason", "outcome"),
}
_LONGEST: Final = 120
"""Letters of what a row shows of a change's arguments and results."""


def audit(
    target: Target,
    *,
    last: Annotated[
        int, typer.Option("--last", help="Show so many, the newest; 0: all.", min=0)
    ] = 50,
    as_json: AsJson = False,
) -> None:
    """Show the changes made to a log by operators, commands and the engine itself.

    Reads audit.jsonl in the log directory, beside a running engine or without one. A
    change without an outcome was cut short, or is under way.

    Example: transporter audit pipeline.yaml --last 10
    """
    from transporter.audit import read_audit  # noqa: PLC0415 - `--help` does without

    changes = list(read_audit(_lines(log_directory(target)), last))
    if as_json:
        write_json(changes)
        return
    if not changes:
        note("nothing was changed by an operator yet")
        return
    table(COLUMNS, [_row(each) for each in changes])


def _lines(directory: Path) -> Iterator[bytes]:
    from transporter.audit import AUDIT  # noqa: PLC0415 - as above
    from transporter.log.filesystem import RealFileSystem  # noqa: PLC0415 - imports pyarrow
    from transporter.offsets.health import require_log  # noqa: PLC0415 - as above

    path = directory / AUDIT
    if not RealFileSystem().is_file(path):
        require_log(directory)
        return
    with path.open("rb") as lines:
        yield from lines


def _row(change: dict[str, Any]) -> tuple[object, ...]:
    more = {name: value for name, value in change.items() if name not in _APART and value != ""}
    what = " ".join(f"{name}={_short(value)}" for name, value in more.items())
    return (
        _when(change.get("at")),
        _who(change),
        change["action"],
        change.get("route", ""),
        what if len(what) <= _LONGEST else f"{what[: _LONGEST - 1]}…",
        change.get("reason", ""),
        change["outcome"] or ("" if "known_by" not in change else "unknown"),
    )


def _when(at: object) -> str:
    if not isinstance(at, int | float) or not math.isfinite(at):
        return ""
    return time_text(round(at * 1_000_000))


def _who(change: dict[str, Any]) -> str:
    """Return who it was, and as whom where that is another user."""
    who = str(change.get("who", ""))
    switched = change.get("loginuid") not in {None, change.get("uid")}
    return f"{who} (as uid {change['uid']})" if switched else who


def _short(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
