"""Facts about a log on disk: segments, times, gaps, and the route that holds them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from transporter.control.entry_values import time_text

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.log.overview import SegmentOverview


def log_facts(directory: Path) -> dict[str, Any]:
    """Return the facts about the log in *directory* as plain values, without the lock.

    Raises:
        EnvironmentFault: there is no log.
        Corrupt: the last segment is damaged at or below its floor.

    """
    from transporter.log.filesystem import RealFileSystem  # noqa: PLC0415 - imports pyarrow
    from transporter.log.overview import describe_segments  # noqa: PLC0415
    from transporter.log.segment import stray_files  # noqa: PLC0415
    from transporter.offsets.offset_log import inspect_log  # noqa: PLC0415

    found = inspect_log(directory)
    bases = [segment.base for segment in found.segments]
    segments = describe_segments(found.directory, bases, found.last)
    return {
        "directory": found.directory,
        "log_id": found.log_id,
        "epoch": found.epoch,
        "first": found.first,
        "last": found.last,
        "confirmed": found.confirmed,
        "oldest": _time_cell(
            min((s.oldest for s in segments if s.oldest is not None), default=None)
        ),
        "newest": _time_cell(
            max((s.newest for s in segments if s.newest is not None), default=None)
        ),
        "bytes": sum(segment.size for segment in segments),
        "dropped": sum(segment.dropped for segment in segments),
        "engine_pid": found.owner,
        "held_by": _held_by(found.directory, found.last),
        "ahead": _seconds_ahead(segments),
        "gaps": _gaps(segments),
        "ignored": [asdict(each) for each in stray_files(RealFileSystem(), found.directory)],
        "segments": [_segment_json(each) for each in segments],
    }


def _held_by(directory: Path, last: int) -> dict[str, Any] | None:
    """Return the route or replay that needs the oldest entry and so prevents its removal."""
    from transporter.offsets.offset_log import declared_routes, read_state  # noqa: PLC0415 - pyarrow

    holds: list[tuple[int, str, str]] = []
    for route in declared_routes(directory):
        state = read_state(directory, route)
        holds.append((state.watermark, "route", route))
        if state.replay is not None:
            holds.append((state.replay.next - 1, "replay", route))
    if not holds:
        return None
    watermark, kind, route = min(holds)
    return {"kind": kind, "route": route, "watermark": watermark, "lag": max(0, last - watermark)}


def _seconds_ahead(segments: list[SegmentOverview]) -> int | None:
    """Return the seconds by which log time is ahead of the wall clock, if that matters."""
    from transporter.log.clocks import AHEAD  # noqa: PLC0415
    from transporter.log.commit_log import wall_clock  # noqa: PLC0415 - imports pyarrow

    newest = max((s.newest for s in segments if s.newest is not None), default=0)
    seconds = (newest - wall_clock()) // 1_000_000
    return seconds if seconds > AHEAD else None


def _gaps(segments: list[SegmentOverview]) -> list[dict[str, Any]]:
    return [
        {"first": gap.first, "last": gap.last, "kind": "lost" if gap.lost else "torn"}
        for segment in segments
        for gap in segment.gaps
    ]


def _segment_json(segment: SegmentOverview) -> dict[str, Any]:
    return {
        "file": segment.name,
        "base": segment.base,
        "last": segment.last,
        "bytes": segment.size,
        "created_at": time_text(segment.created_at),
        "oldest": _time_cell(segment.oldest),
        "newest": _time_cell(segment.newest),
        "dropped": segment.dropped,
        "sealed": segment.sealed,
        "epoch": segment.epoch,
    }


def _time_cell(microseconds: int | None) -> str | None:
    return None if microseconds is None else time_text(microseconds)
