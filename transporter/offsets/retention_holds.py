"""Holds on the log: the oldest entry that some declared route still needs (Invariant 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from transporter.log.filesystem import RealFileSystem
from transporter.log.maintenance import MaintenanceRecord, read_maintenance
from transporter.offsets.offset_log import OffsetLog, StoredRoutes, declared_routes, read_state
from transporter.offsets.state import RELEASED, Range

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from transporter.log.filesystem import FileSystem
    from transporter.offsets.state import RouteState


class Hold(NamedTuple):
    """A holder that needs every entry beyond the offset ``through``: a route, replay or reader."""

    through: int
    name: str
    kind: Literal["route", "replay", "reader", "removed reader"] = "route"

    def __str__(self) -> str:
        return f"replay of {self.name}" if self.kind == "replay" else f"{self.kind} {self.name}"


_ORDER: Final = ("replay", "route", "reader", "removed reader")
"""Order of holds at one offset. A redelivery is released before entries that were never
delivered, and a reader only waits for a route or for its source."""


def lowest_hold(holds: Iterable[Hold]) -> Hold | None:
    """Return the hold that bounds compaction and retention, or ``None`` without holds.

    The lowest offset decides, then the kind, and only then the name.
    """
    return min(
        holds, key=lambda each: (each.through, _ORDER.index(each.kind), each.name), default=None
    )


def hold_of(route: str, state: RouteState) -> Hold:
    """Return the hold of *route*: its unsettled entries and the rest of its replay.

    Parked entries are copies, so a retry holds nothing.
    """
    if state.replay is not None and state.replay.next <= state.watermark:
        return Hold(state.replay.next - 1, route, "replay")
    return Hold(state.watermark, route)


def confirmed_hold(
    directory: Path,
    route: str,
    files: FileSystem | None = None,
    stored_routes: StoredRoutes | None = None,
) -> Hold:
    """Return the hold of *route* as no power cut can take it back. Needs the log's lock.

    Writes of a dead engine may never have reached the disk, even if a sync succeeds now.
    Opening an offset log writes its state again (Invariant 13). *stored_routes* may have read it
    already.
    """
    with OffsetLog(directory, route, files, stored_routes=stored_routes) as offsets:
        return hold_of(route, offsets.state)


def least_hold(
    directory: Path, files: FileSystem | None = None, *, has_lock: bool = False
) -> Hold | None:
    """Return the least hold on a log without a running engine, or ``None`` without routes.

    The holders are its declared routes, and its readers as the last engine recorded them.
    Without the lock the result is the current view. With the log's lock held (*has_lock*) it is
    durable.
    """
    routes = declared_routes(directory, files)
    if not routes:
        return None
    if has_lock:
        holds = [confirmed_hold(directory, each, files) for each in routes]
    else:
        holds = [hold_of(each, read_state(directory, each, files)) for each in routes]
    record = read_maintenance(files or RealFileSystem(), directory) or MaintenanceRecord()
    readers = (Hold(through, name, "reader") for name, through in record.readers.items())
    return lowest_hold([*holds, *readers])


def release(offsets: OffsetLog, through: int, durable: int, reason: str) -> Range | None:
    """Release the needs of the route of *offsets* up to *through*, durably on return.

    The range is in the audit file before the route passes it, and stays in the state. Nothing
    is skipped silently.

    Returns:
        The range that the route lost, ``None`` if it needs nothing up to *through*.

    """
    state = offsets.state
    first = hold_of(offsets.route, state).through + 1
    if first > through:
        return None
    offsets.audit("release", first=first, last=through, reason=reason)
    if state.replay is not None:
        last = min(through, state.replay.last)
        offsets.advance_replay(last, state.generation, is_delivery=False)
    if state.watermark < through:
        offsets.settle(Range(state.next_unsettled(), through, RELEASED), durable)
    offsets.sync()
    return Range(first, through, RELEASED)
