"""The page of a log's files. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from transporter.console.formats import count_text, size_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

WIDTH: Final = 1000
"""Units of the bar's width."""
MOST_SEGMENTS: Final = 500
"""Segments in the table: the newest."""


class Bar(NamedTuple):
    """A segment in the bar: its place and width, its tone, and its description."""

    x: float
    width: float
    tone: str
    label: str


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """One segment in the table, the newest first."""

    name: str
    offsets: str
    size: str
    dropped: str
    oldest: str
    newest: str
    state: str
    epoch: str


@dataclass(frozen=True, slots=True)
class Health:
    """The files of a log."""

    facts: tuple[tuple[str, str], ...]
    held: str
    warnings: tuple[str, ...]
    bars: tuple[Bar, ...]
    rows: tuple[SegmentRow, ...]
    left_out: int


def health(facts: Mapping[str, Any]) -> Health:
    """Return the view of the *facts* of ``transporter log info --json``."""
    segments: Sequence[Mapping[str, Any]] = facts["segments"]
    shown = segments[-MOST_SEGMENTS:]
    return Health(
        facts=(
            ("offsets", _range_text(facts["first"], facts["last"])),
            ("confirmed", count_text(facts["confirmed"])),
            ("size", size_text(facts["bytes"])),
            ("segments", count_text(len(segments))),
            ("oldest entry", _time(facts["oldest"]).replace("T", " ") or "none"),
            ("newest entry", _time(facts["newest"]).replace("T", " ") or "none"),
            ("dropped by compaction", count_text(facts["dropped"])),
            ("epoch", count_text(facts["epoch"])),
            ("log id", facts["log_id"]),
        ),
        held=_held_text(facts["held_by"]),
        warnings=tuple(_warnings(facts)),
        bars=tuple(_bars(shown)),
        rows=tuple(map(_row, reversed(shown))),
        left_out=len(segments) - len(shown),
    )


def _range_text(first: int, last: int) -> str:
    return "none" if last < first else f"{count_text(first)} .. {count_text(last)}"


def _time(text: str | None) -> str:
    return (text or "").replace("+00:00", "Z")


def _held_text(held: Mapping[str, Any] | None) -> str:
    if held is None:
        return "no route has run on this log, so nothing holds its entries"
    if not held["lag"]:
        return "nothing is held: every route has settled all entries"
    behind = count_text(held["lag"])
    holder = f"{held['kind']} {held['route']}"
    if held["watermark"] < 0:
        return f"{holder} holds all {behind} entries"
    return f"{holder} holds {behind} entries: all behind {count_text(held['watermark'])}"


def _warnings(facts: Mapping[str, Any]) -> Iterator[str]:
    for gap in facts["gaps"]:
        kind = (
            "lost: a repair could not save them"
            if gap["kind"] == "lost"
            else "torn by a crash, and never acknowledged"
        )
        yield f"{_range_text(gap['first'], gap['last'])} {kind}"
    if facts["ahead"] is not None:
        yield f"log time is {facts['ahead']} s ahead of the wall clock (docs/log.md, Log time)"
    for each in facts["ignored"]:
        yield f"{each['name']}: {each['problem']}"


def _bars(segments: Sequence[Mapping[str, Any]]) -> Iterator[Bar]:
    total = sum(each["bytes"] for each in segments) or 1
    at = 0.0
    for each in segments:
        width = WIDTH * each["bytes"] / total
        state = _state(each)
        label = f"{each['file']}: {size_text(each['bytes'])}, {state}"
        yield Bar(round(at, 2), round(max(width - 1, 0.5), 2), state, label)
        at += width


def _state(segment: Mapping[str, Any]) -> str:
    if not segment["sealed"]:
        return "active"
    return "compacted" if segment["dropped"] else "sealed"


def _row(segment: Mapping[str, Any]) -> SegmentRow:
    return SegmentRow(
        name=segment["file"],
        offsets=_range_text(segment["base"], segment["last"]),
        size=size_text(segment["bytes"]),
        dropped=count_text(segment["dropped"]),
        oldest=_time(segment["oldest"]),
        newest=_time(segment["newest"]),
        state=_state(segment),
        epoch=str(segment["epoch"]),
    )
