"""Commands ``transporter parked``: inspect, retry and skip parked entries."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from transporter.cli.action_options import (
    Reason,
    RouteName,
    parse_wait,
    perform_request,
    report_result,
)
from transporter.cli.command_group import command_group
from transporter.cli.entry_output import note
from transporter.cli.log_target import AsJson, Target, log_directory, offset_range
from transporter.cli.output import (
    printable,
    problem_text,
    value_text,
    write,
    write_json,
    write_table,
)
from transporter.control.entry_values import time_text
from transporter.control.parked_selection import named_offsets
from transporter.control.parked_values import list_parked_offsets, parked_json, read_parked
from transporter.control.request_arguments import named_ranges
from transporter.control.requests import NoteParked, RetryParked, SkipParked
from transporter.errors import OffsetRefused

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.control.parked_notes import ParkedNote
    from transporter.errors import Corrupt
    from transporter.offsets.parked import ParkedEntry

_TICK: Final = 0.1
"""Seconds between two looks at the outcome of retries."""

Only = Annotated[
    bool, typer.Option("--only", help="Leave entries parked behind these where they are.")
]
Which = Annotated[
    list[str] | None,
    typer.Argument(help="Offsets, or ranges of offsets; all by default.", metavar="X..Y"),
]


def build() -> typer.Typer:
    """Build the group."""
    return command_group(
        "Show, retry or skip parked entries.",
        list=list_parked,
        show=show,
        retry=retry,
        skip=skip,
        note=add_note,
    )


def list_parked(
    target: Target,
    route: RouteName,
    *,
    most: Annotated[
        int, typer.Option("--first", help="Number of entries to show, the oldest; 0: all.", min=0)
    ] = 200,
    as_json: AsJson = False,
) -> None:
    """List a route's parked entries.

    Each appears with its error, and with the newest note about it.

    Example:
        transporter parked list pipeline.yaml events
    """
    from transporter.offsets.offset_log import read_state  # noqa: PLC0415 - imports pyarrow

    directory = log_directory(target)
    wanted = set(read_state(directory, route).retries)
    notes = _notes_of(directory, route)
    offsets = list_parked_offsets(directory, route)
    shown = offsets[:most] if most else offsets
    damaged: list[Corrupt] = []
    found = list(read_parked(directory, route, shown, damaged.append))
    if len(shown) < len(offsets):
        note(f"{len(shown)} of {len(offsets)} are shown; --first 0 shows all")
    if not as_json:
        columns = ("offset", "parked at", "key", "attempts", "error", "")
        write_table(
            columns,
            [
                _parked_row(
                    parked, notes.get(parked.offset), retry_requested=parked.offset in wanted
                )
                for parked in found
            ],
        )
    for error in damaged:
        raise error
    if as_json:
        write_json(
            [
                parked_json(
                    parked, notes.get(parked.offset), retry_requested=parked.offset in wanted
                )
                for parked in found
            ]
        )


def show(
    target: Target,
    route: RouteName,
    offset: Annotated[int, typer.Argument(help="Entry's offset.", metavar="OFFSET", min=0)],
    *,
    as_json: AsJson = False,
) -> None:
    """Show one parked entry in full.

    It shows the entry's error, the newest note about it, its headers and all of its data.

    Example:
        transporter parked show pipeline.yaml events 14
    """
    from transporter.offsets.offset_log import read_state  # noqa: PLC0415 - imports pyarrow

    directory = log_directory(target)
    retry_requested = offset in read_state(directory, route).retries
    found = next(read_parked(directory, route, [offset]), None)
    if found is None:
        raise OffsetRefused(f"route {route}: nothing is parked at {offset}")
    note_of = _notes_of(directory, route).get(offset)
    content = parked_json(found, note_of, retry_requested=retry_requested)
    if as_json:
        write_json(content)
        return
    entry = content.pop("entry")
    if content["behind"] is None:
        del content["behind"]  # It failed itself.
    del content["note"]
    if note_of is not None:
        content["note"] = _note_text(note_of)
    for name, value in (
        content | {name: entry[name] for name in entry if name != "offset"}
    ).items():
        title = name.replace("_", " ")
        lines = _header_lines(value) if name == "headers" else [value_text(value)]
        if name == "error":
            lines = [problem_text(value)]
        for line in lines:
            write(f"{title:<16}{printable(line)}")
            title = ""


def _header_lines(headers: list[list[object]]) -> list[str]:
    return [f"{name}: {value_text(value)}" for name, value in headers] or ["none"]


def retry(
    target: Target,
    route: RouteName,
    offsets: Which = None,
    *,
    only: Only = False,
    reason: Reason = "",
    wait: Annotated[
        str, typer.Option("--wait", help="Maximum time to wait for the outcome; 0s: none.")
    ] = "10s",
    as_json: AsJson = False,
) -> None:
    """Deliver parked entries again.

    Each key is delivered in order. Entries that fail again stay parked. Entries parked
    behind a delivered one follow it. The running engine delivers them: the command waits,
    and shows how many were delivered and how many have failed again.

    Examples:
        transporter parked retry pipeline.yaml events 14
        transporter parked retry pipeline.yaml events 3 7 10..20
    """
    request = RetryParked(
        route, reason=reason, only=only, **named_ranges([*map(offset_range, offsets or [])])
    )
    patience = parse_wait(wait)
    result = perform_request(target, request)
    if not result["live"]:
        report_result(result, as_json=as_json)
        return
    if not as_json:
        report_result(result, as_json=False)
    outcome = _await_retries(log_directory(target), route, result, patience)
    if as_json:
        write_json({**result, "outcome": outcome})
    elif patience:
        _write_outcome(outcome, wait)


def _await_retries(
    directory: Path, route: str, result: dict[str, Any], patience: float
) -> dict[str, list[int]]:
    """Return what has become of the offsets and the followers in *result* after *patience*.

    They were delivered, are parked again, stay parked behind others, or were not tried yet.
    """
    from transporter.offsets.offset_log import read_state  # noqa: PLC0415 - imports pyarrow

    until = time.monotonic() + patience
    asked, followers = {*result["offsets"]}, {*result["followers"]}
    wanted = asked | followers
    while (pending := wanted.intersection(read_state(directory, route).retries)) and (
        left := until - time.monotonic()
    ) > 0:
        time.sleep(min(_TICK, left))
    parked = wanted.intersection(list_parked_offsets(directory, route)) - pending
    found = {
        "delivered": wanted - parked - pending,
        "parked": parked & asked,
        "behind": parked - asked,
        "pending": pending,
    }
    return {name: sorted(each) for name, each in found.items()}


def _write_outcome(outcome: dict[str, list[int]], wait: str) -> None:
    counts = {name: len(each) for name, each in outcome.items()}
    text = f"outcome: {counts['delivered']} delivered, {counts['parked']} parked again"
    if outcome["parked"]:
        shown = named_offsets(outcome["parked"])
        text += f" ({shown}: 'transporter parked show' has the error)"
    if outcome["behind"]:
        text += f", {counts['behind']} of those behind stay parked"
    if outcome["pending"]:
        text += f", {counts['pending']} not tried within {wait}; look at 'transporter status'"
    write(printable(text))


def skip(
    target: Target,
    route: RouteName,
    offsets: Annotated[
        list[str], typer.Argument(help="Offsets, or ranges of offsets.", metavar="X..Y")
    ],
    *,
    only: Only = False,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Skip parked entries for good.

    They stay in the log as long as it retains them. Entries parked behind one of them are
    then delivered.

    Example:
        transporter parked skip pipeline.yaml events 14 --reason "test order"
    """
    request = SkipParked(
        route, reason=reason, only=only, **named_ranges([*map(offset_range, offsets)])
    )
    report_result(perform_request(target, request), as_json=as_json)


def add_note(
    target: Target,
    route: RouteName,
    offset: Annotated[int, typer.Argument(help="Entry's offset.", metavar="OFFSET", min=0)],
    text: Annotated[str, typer.Argument(help="Note; empty removes it.", metavar="TEXT")],
    *,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Write a note about a parked entry.

    It is a line of the audit file, and 'parked list' and 'parked show' have the newest
    one. It changes nothing else.

    Example:
        transporter parked note pipeline.yaml events 14 "waits for ACME"
    """
    result = perform_request(target, NoteParked(route, offset, text, reason))
    report_result(result, as_json=as_json, later=False)


def _notes_of(directory: Path, route: str) -> dict[int, ParkedNote]:
    from transporter.cli.audit import read_lines  # noqa: PLC0415 - only where notes are shown
    from transporter.control.parked_notes import read_notes  # noqa: PLC0415 - the same

    return read_notes(read_lines(directory), route)


def _note_text(written: ParkedNote) -> str:
    return f"{written.text} ({written.who}, {time_text(round(written.at * 1_000_000))})"


def _parked_row(
    parked: ParkedEntry, written: ParkedNote | None, *, retry_requested: bool
) -> tuple[object, ...]:
    key = parked.key.decode(errors="replace") if parked.key is not None else "null"
    reason = parked.reason
    remarks = ["retry requested"] if retry_requested else []
    remarks += [f"note: {_note_text(written)}"] if written is not None else []
    return (
        parked.offset,
        time_text(reason.parked_at),
        key,
        reason.attempts,
        problem_text(reason.error),
        "; ".join(remarks),
    )
