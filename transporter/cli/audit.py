"""Command ``transporter audit``: the changes made to a log, with author and reason."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from transporter.cli.entry_output import note
from transporter.cli.log_target import AsJson, Target, log_directory
from transporter.cli.output import write_json, write_table
from transporter.control.entry_values import time_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COLUMNS: Final = ("at", "who", "action", "route", "what", "reason", "outcome")
_APART: Final = {
    *("id", "at", "who", "known_by", "loginuid", "uid", "pid", "via", "from", "by"),
    *("action", "route", "reason", "outcome"),
}
_LONGEST: Final = 120
"""Characters of a change's arguments and results in a row."""


def audit(
    target: Target,
    *,
    last: Annotated[
        int, typer.Option("--last", help="Number of changes to show, the newest; 0: all.", min=0)
    ] = 50,
    as_json: AsJson = False,
) -> None:
    """Show the changes made to a log.

    Operators, commands and the engine itself make them. The command reads audit.jsonl
    in the log directory, with or without a running engine. A change without an outcome
    was interrupted or is still under way.

    Example:
        transporter audit pipeline.yaml --last 10
    """
    from transporter.audit import read_audit  # noqa: PLC0415 - `--help` does without

    changes = list(read_audit(read_lines(log_directory(target)), last))
    if as_json:
        write_json(changes)
        return
    if not changes:
        note("no changes were made to this log yet")
        return
    write_table(COLUMNS, [_change_row(each) for each in changes])


def read_lines(directory: Path) -> Iterator[bytes]:
    """Yield the lines of the audit file in the log *directory*, none if it has no file yet."""
    from transporter.audit import AUDIT  # noqa: PLC0415 - as above
    from transporter.log.filesystem import RealFileSystem  # noqa: PLC0415 - imports pyarrow
    from transporter.offsets.verify_repair import require_log  # noqa: PLC0415 - as above

    path = directory / AUDIT
    if not RealFileSystem().is_file(path):
        require_log(directory)
        return
    with path.open("rb") as lines:
        yield from lines


def _change_row(change: dict[str, Any]) -> tuple[object, ...]:
    more = {name: value for name, value in change.items() if name not in _APART and value != ""}
    what = " ".join(
        f"{name}={_value_text(value)}" for name, value in more.items() if _has_content(value)
    )
    return (
        _time_cell(change.get("at")),
        _actor_text(change),
        change["action"],
        change.get("route", ""),
        what if len(what) <= _LONGEST else f"{what[: _LONGEST - 1]}…",
        change.get("reason", ""),
        change["outcome"] or ("" if "known_by" not in change else "unknown"),
    )


def _time_cell(at: object) -> str:
    if not isinstance(at, int | float) or not math.isfinite(at):
        return ""
    return time_text(round(at * 1_000_000))


def _actor_text(change: dict[str, Any]) -> str:
    """Return the author of *change*, and the user whose rights were used if that is another."""
    who = str(change.get("who", ""))
    if change.get("known_by") == "for":
        place = f" from {change['from']}" if change.get("from") else ""
        return f"{who}{place} (via {change.get('via') or 'a front end'} as {change.get('by')})"
    switched = change.get("loginuid") not in {None, change.get("uid")}
    return f"{who} (as uid {change['uid']})" if switched else who


def _has_content(value: object) -> bool:
    """Return whether *value* is more than an empty list or text."""
    if isinstance(value, dict):
        return any(map(_has_content, value.values()))
    return not isinstance(value, list | str) or bool(value)


def _value_text(value: object) -> str:
    if isinstance(value, dict):
        parts = (
            f"{name}: {_value_text(each)}" for name, each in value.items() if _has_content(each)
        )
        return f"[{'; '.join(parts)}]"
    if isinstance(value, list):
        return ",".join(map(_value_text, value))
    return value if isinstance(value, str) else json.dumps(value)
