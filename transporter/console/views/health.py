"""The page of a log's files. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from transporter.console.formats import count_text, iso_text, one_line, size_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from transporter.console.child import Verification

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


def disk_facts(status: Mapping[str, Any], free: int) -> tuple[tuple[str, str], ...]:
    """Return the room for the log: its budget by the *status*, and *free* bytes on the disk."""
    used, most = status.get("used"), status.get("max_bytes")
    budget = () if not used or not most else (("budget used", f"{100 * used / most:.0f} %"),)
    limit = () if not most else (("budget", size_text(most)),)
    return (("free on this disk", size_text(free)), *limit, *budget)


class VerificationView(NamedTuple):
    """The state of a verification: a text with its tone, and the damage that it found."""

    tone: str
    text: str
    problems: tuple[str, ...] = ()


def verification_view(found: Verification | None) -> VerificationView | None:
    """Return the view of a verification, ``None`` if there was none."""
    if found is None:
        return None
    began = iso_text(found.began)
    if found.problem:
        return VerificationView("bad", f"begun at {began}: {one_line(found.problem)}")
    if found.result is None:
        return VerificationView("idle", f"begun at {began}, and still reading")
    if "message" in found.result:
        return VerificationView("bad", f"begun at {began}: {one_line(found.result['message'])}")
    damages = tuple(map(_damage_text, found.result["damages"]))
    if not found.result["sound"]:
        return VerificationView("bad", f"begun at {began}: {len(damages)} damaged places", damages)
    return VerificationView("good", f"begun at {began}: nothing is damaged")


def _damage_text(damage: Mapping[str, Any]) -> str:
    route = f" of route {damage['route']}" if damage["route"] else ""
    lost = f"; it costs {_range_text(*damage['lost'])}" if damage["lost"] else ""
    place = f"{damage['file']}{route}, byte {damage['byte']}"
    return one_line(f"{place}: {damage['problem']}{lost}")


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
