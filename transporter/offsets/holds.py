"""What holds the log: the oldest entry that some declared route still needs (Invariant 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from transporter.offsets.offset_log import OffsetLog, declared_routes, read_state
from transporter.offsets.state import RELEASED, Range

if TYPE_CHECKING:
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


def hold_of(route: str, state: RouteState) -> Hold:
    """Return what *route* holds: what it has not settled, and what is left of its replay.

    Parked entries are copies, so a retry holds nothing.
    """
    if state.replay is not None and state.replay.next <= state.watermark:
        return Hold(state.replay.next - 1, route, "replay")
    return Hold(state.watermark, route)


def confirmed_hold(directory: Path, route: str, files: FileSystem | None = None) -> Hold:
    """Return what *route* holds, such that no power cut can take it back; needs the log's lock.

    What a dead engine wrote may never have reached the disk, whatever a sync would
    say of it now; to open an offset log is to write it down anew (Invariant 13).
    """
    with OffsetLog(directory, route, files) as offsets:
        return hold_of(route, offsets.state)


def least_hold(
    directory: Path, files: FileSystem | None = None, *, locked: bool = False
) -> Hold | None:
    """Return what the declared route that is furthest behind holds; ``None`` without routes.

    As it looks now; *locked*, that is with the log's lock held, as it is durable.
    """
    routes = declared_routes(directory, files)
    if locked:
        return min((confirmed_hold(directory, each, files) for each in routes), default=None)
    states = ((each, read_state(directory, each, files)) for each in routes)
    return min((hold_of(*each) for each in states), default=None)


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
