"""What holds the log: the oldest entry that some declared route still needs (Invariant 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from transporter.log.filesystem import RealFileSystem
from transporter.log.maintenance import MaintenanceRecord, read_record
from transporter.offsets.offset_log import (
    OffsetLog,
    StoredRoutes,
    declared_routes,
    read_state,
)
from transporter.offsets.state import RELEASED, Range

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from transporter.log.filesystem import FileSystem
    from transporter.offsets.state import RouteState


class Hold(NamedTuple):
    """Who needs every entry beyond the offset ``through``: a route, its replay, or a reader."""

    through: int
    name: str
    kind: Literal["route", "replay", "reader"] = "route"

    def __str__(self) -> str:
        return f"replay of {self.name}" if self.kind == "replay" else f"{self.kind} {self.name}"


_ORDER: Final = ("replay", "route", "reader")
"""Of holds at one offset the first counts: what is delivered once more is given up before
what was never delivered, and a reader only waits for a route, or for its source."""


def least(holds: Iterable[Hold]) -> Hold | None:
    """Return the hold that bounds compaction and retention; ``None`` of none.

    The lowest offset counts, then the kind, and only then the name.
    """
    return min(
        holds, key=lambda each: (each.through, _ORDER.index(each.kind), each.name), default=None
    )


def hold_of(route: str, state: RouteState) -> Hold:
    """Return what *route* holds: what it has not settled, and what is left of its replay.

    Parked entries are copies, so a retry holds nothing.
    """
    if state.replay is not None and state.replay.next <= state.watermark:
        return Hold(state.replay.next - 1, route, "replay")
    return Hold(state.watermark, route)


def confirmed_hold(
    directory: Path,
    route: str,
    files: FileSystem | None = None,
    stored: StoredRoutes | None = None,
) -> Hold:
    """Return what *route* holds, such that no power cut can take it back; needs the log's lock.

    What a dead engine wrote may never have reached the disk, whatever a sync would
    say of it now; to open an offset log is to write it down anew (Invariant 13). *stored*
    may have read it already.
    """
    with OffsetLog(directory, route, files, stored=stored) as offsets:
        return hold_of(route, offsets.state)


def least_hold(
    directory: Path, files: FileSystem | None = None, *, locked: bool = False
) -> Hold | None:
    """Return what holds a log of which no engine runs; ``None`` without routes.

    That are its declared routes, and its readers as the last engine has recorded them. As it
    looks now; *locked*, that is with the log's lock held, as it is durable.
    """
    routes = declared_routes(directory, files)
    if not routes:
        return None
    if locked:
        holds = [confirmed_hold(directory, each, files) for each in routes]
    else:
        holds = [hold_of(each, read_state(directory, each, files)) for each in routes]
    record = read_record(files or RealFileSystem(), directory) or MaintenanceRecord()
    readers = (Hold(through, name, "reader") for name, through in record.readers.items())
    return least([*holds, *readers])


def release(offsets: OffsetLog, through: int, durable: int, reason: str) -> Range | None:
    """Let the route of *offsets* give up what it needs up to *through*; durable on return.

    Returns the range that it lost, ``None`` when it needs nothing of that. The range is
    in the audit file before it is passed, and stays in the state: nothing is skipped silently.
    """
    state = offsets.state
    first = hold_of(offsets.route, state).through + 1
    if first > through:
        return None
    offsets.audit("release", first=first, last=through, reason=reason)
    if state.replay is not None:
        offsets.advance_replay(min(through, state.replay.last), state.generation)
    if state.watermark < through:
        offsets.settle(Range(state.next_live(), through, RELEASED), durable)
    offsets.sync()
    return Range(first, through, RELEASED)
