"""Log status read from disk, without the lock. Imports stay light for the start of commands."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from transporter.log.filesystem import RealFileSystem
from transporter.log.operator_pauses import read_paused
from transporter.offsets.halt_reason import read_halt_reason
from transporter.offsets.offset_log import declared_routes, inspect_log, read_state, route_folder
from transporter.offsets.parked import parked_offsets

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.offsets.state import RouteState


def route_progress(state: RouteState) -> dict[str, Any]:
    """Return how far a route has come, as plain values."""
    return {
        "watermark": state.watermark,
        "next": state.next_offset(),
        "generation": state.generation,
        "paused": state.paused,
        "step": state.step,
        "replay": asdict(state.replay) if state.replay else None,
        "retries": len(state.retries),
    }


def read_status(directory: Path) -> dict[str, Any]:
    """Return the status of a log without an engine, from disk and without the lock."""
    found = inspect_log(directory)
    return {
        "running": False,
        "pid": found.owner,
        "directory": str(directory),
        "last": found.last,
        "size": sum(segment.size for segment in found.segments),
        "readers": [
            {"name": name, "state": "paused", "logged": 0, "problem": "", "measured": {}}
            for name in sorted(read_paused(directory))
        ],
        "routes": [
            _route_status(directory, name, found.last) for name in declared_routes(directory)
        ],
    }


def _route_status(directory: Path, name: str, last: int) -> dict[str, Any]:
    state = read_state(directory, name)
    folder = route_folder(directory, name)
    problem = read_halt_reason(folder, state.next_offset())
    stopped = "stopped" if problem else "not running"
    return {
        "name": name,
        "state": "paused" if state.paused else stopped,
        "problem": problem,
        "lag": max(0, last - state.watermark),
        "parked": len(parked_offsets(folder, RealFileSystem())),
        **route_progress(state),
    }
