"""Offset logs and parked entries as a process left them, to be damaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from damage_tools import ROUTE, Damage, content_of, some_messages
from log_tools import small

from transporter.message import with_offsets
from transporter.offsets.offset_log import NAMES, OffsetLog, route_folder
from transporter.offsets.parked import ParkedEntry, ParkedStore, ParkReason
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.offsets.state import RouteState


@dataclass(frozen=True)
class LeftRoute:
    """A route's offset log as a process left it.

    ``known`` holds the state behind each record: by file, in order, with the byte where the
    record's own bytes end (padding left out). ``current`` is the newest file.
    """

    content: dict[str, bytes]
    known: dict[str, list[tuple[int, RouteState]]]
    current: str

    def state_after(self, name: str, damage: Damage) -> RouteState | None:
        """Return the state that *damage* to the file *name* leaves, or ``None`` without one."""
        other = next(each for each in self.known if each != self.current)
        if name != self.current:
            return self.known[self.current][-1][1]
        if damage.bit is None:
            whole = [state for end, state in self.known[name] if end <= damage.byte]
        else:
            whole = self._before_flip(name, damage.byte)
        before = self.known[other]
        return whole[-1] if whole else before[-1][1] if before else None

    def _before_flip(self, name: str, byte: int) -> list[RouteState]:
        states = []
        start = 0
        for end, state in self.known[name]:
            if start <= byte < end:
                break
            states.append(state)
            start = -(-end // 8) * 8
        return states


def leave_route(directory: Path, events: int, *, closed: bool) -> LeftRoute:
    """Make the offset log of a route with *events* of every kind, and leave it."""
    folder = f"offsets/{ROUTE}"
    known: dict[str, list[tuple[int, RouteState]]] = {f"{folder}/{name}": [] for name in NAMES}
    with small():
        log = OffsetLog(directory, ROUTE)

        def note() -> None:
            name = f"{folder}/{NAMES[log._slot]}"
            states = known[name]
            del states[log._sequence - 1 :]
            start = -(-states[-1][0] // 8) * 8 if states else 0
            size = (directory / name).read_bytes()[start + 8 : start + 12]
            states.append((start + 32 + int.from_bytes(size, "little"), log.state))

        note()
        for number in range(events):
            _some_event(log, number)
            note()
        if closed:
            log.close()
            note()
        elif log._file is not None:
            log._file.close()
        return LeftRoute(content_of(directory), known, f"{folder}/{NAMES[log._slot]}")


def _some_event(log: OffsetLog, number: int) -> None:
    last = 3 * number + 2
    match number % 7:
        case 1:
            log.request_retries([number, number + 1])
        case 2:
            log.begin_replay(0, log.state.watermark)
        case 3:
            log.advance_replay(1, log.state.generation)
        case 4:
            log.cancel_replay()
        case 5:
            log.finish_retry(number - 4)
        case _:
            log.settle(Range(last - 2, last, "skipped"), last, {f"n{number}": last})


def leave_parked(directory: Path) -> dict[str, ParkedEntry]:
    """Park three entries of a route, each in its own file below *directory*. Return them."""
    parked = {}
    with small():
        store = ParkedStore(route_folder(directory, ROUTE))
        for number in (3, 5, 8):
            entries = with_offsets(some_messages(number, size=200 * number), number, 7)
            one = ParkedEntry(
                number, entries, ParkReason(f"no {number}", number, 9, behind=number - 1)
            )
            store.park(one)
            parked[f"offsets/{ROUTE}/parked/{number:020d}.entry"] = one
    return parked
