"""Records of an offset log, as bytes. Pure. docs/design/offsets.md has the diagram."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from crc32c import crc32c

from transporter.errors import OffsetRefused, UnknownFormat
from transporter.offsets import state as states

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

FORMAT: Final = 1
MAGIC: Final = b"OREC"
ALIGNMENT: Final = 8
MAX_RECORD: Final = 16 << 20
"""Largest size in bytes of a record's event, checked before any allocation (Invariant 17)."""
MAX_STATE: Final = MAX_RECORD - (2 << 20)
"""Bytes of ranges and retries in a state, so that its snapshot with names fits into a record."""
RANGE_BYTES: Final = 64
RETRY_BYTES: Final = 21
"""Largest size of a settled range, or of a retry, in a snapshot."""
NAMESPACE_BYTES: Final = 256 << 10
"""Bytes in a snapshot for the newest offset of each namespace."""
_NUMBER_BYTES: Final = 24
_HEADER: Final = struct.Struct("<4sHHIQQI")


@dataclass(frozen=True, slots=True)
class Record:
    """One event of a route, with its place in the turn of a file."""

    turn: int
    sequence: int
    event: dict[str, Any]

    def encode(self) -> bytes:
        """Return the record's bytes, a multiple of :data:`ALIGNMENT`.

        Raises:
            OffsetRefused: it is too large to be read again (Invariant 17).

        """
        body = json.dumps(self.event, ensure_ascii=False, separators=(",", ":")).encode()
        if len(body) > MAX_RECORD:
            raise OffsetRefused(
                f"an offset log's record of {len(body)} bytes ({self.event.get('type')}) exceeds "
                f"the {MAX_RECORD} bytes that can be read again; request fewer entries at once"
            )
        head = _HEADER.pack(MAGIC, FORMAT, 0, len(body), self.turn, self.sequence, 0)[:-4]
        data = head + struct.pack("<I", crc32c(body, crc32c(head))) + body
        return data.ljust(_align(len(data)), b"\0")


def _align(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def decode_records(data: bytes, file: str) -> Iterator[Record]:
    """Yield the records at the start of *data* up to the first that does not follow.

    Raises:
        UnknownFormat: an intact record of another format version (Invariant 19).

    """
    byte = 0
    before: _Block | None = None
    while (found := _block_at(data, byte, file)) is not None:
        if before and (found.turn, found.sequence) != (before.turn, before.sequence + 1):
            return
        yield Record(found.turn, found.sequence, json.loads(found.event))
        before, byte = found, found.end


def first_turn(data: bytes, file: str) -> int:
    """Return the turn of the whole snapshot at the start of *data*, or -1 without one.

    Raises:
        UnknownFormat: an intact record of another format version (Invariant 19).

    """
    found = _block_at(data, 0, file)
    if found is None or json.loads(found.event).get("type") != "snapshot":
        return -1
    return found.turn


def highest_turn(data: bytes, file: str) -> int:
    """Return the highest turn of any intact record in *data*, at any place, or 0 for none."""
    highest = 0
    byte = data.find(MAGIC)
    while byte >= 0:
        found = _block_at(data, byte, file) if byte % ALIGNMENT == 0 else None
        highest = max(highest, found.turn if found else 0)
        byte = data.find(MAGIC, byte + 1)
    return highest


class _Block(NamedTuple):
    """An intact record with its event still as text. ``end`` is the place of the next one."""

    turn: int
    sequence: int
    event: bytes
    end: int


def _block_at(data: bytes, byte: int, file: str) -> _Block | None:
    if len(data) < byte + _HEADER.size or data[byte : byte + 4] != MAGIC:
        return None
    _, version, _, size, turn, sequence, checksum = _HEADER.unpack_from(data, byte)
    start = byte + _HEADER.size
    if size > MAX_RECORD or len(data) < start + size:
        return None
    head, body = data[byte : start - 4], data[start : start + size]
    if crc32c(body, crc32c(head)) != checksum:
        return None
    if version != FORMAT:
        raise UnknownFormat(
            f"{file}: format version {version}, but this transporter reads version {FORMAT}; "
            "use the version that wrote this file, or one that can read it"
        )
    return _Block(turn, sequence, body, byte + _align(_HEADER.size + size))


def snapshot_event(state: states.RouteState) -> dict[str, Any]:
    """Return the event that holds all of *state*, with as many namespaces as have room."""
    return {"type": "snapshot", **state.to_json(), "namespaces": _fit_namespaces(state.namespaces)}


def _fit_namespaces(namespaces: dict[str, int]) -> dict[str, int]:
    """Return the newest of *namespaces* that fit into :data:`NAMESPACE_BYTES`."""
    most = 4 * sum(map(len, namespaces)) + _NUMBER_BYTES * len(namespaces)
    if most <= NAMESPACE_BYTES:
        return namespaces
    newest = sorted(namespaces.items(), key=lambda pair: -pair[1])
    sizes = accumulate(len(name.encode()) + _NUMBER_BYTES for name, _ in newest)
    room = (pair for pair, size in zip(newest, sizes, strict=True) if size <= NAMESPACE_BYTES)
    return dict(room)


def state_size(state: states.RouteState) -> int:
    """Return the most bytes that the parts of *state* which can grow take in a snapshot."""
    asked = len(state.retries) + len(state.only) + len(state.skips)
    return RANGE_BYTES * len(state.above) + RETRY_BYTES * asked


def refuse_growth(route: str, state: states.RouteState) -> None:
    """Raise :class:`OffsetRefused` if a snapshot of *state* could not be read again."""
    if state_size(state) > MAX_STATE:
        raise OffsetRefused(
            f"route {route}: too many ranges beyond its watermark ({len(state.above)}) and retries "
            f"({len(state.retries)}) for one offset log; let the route continue, then try again"
        )


def settled_event(part: states.Range, namespaces: dict[str, int]) -> dict[str, Any]:
    """Return the event that settles *part*, with the newest of *namespaces*."""
    return {"type": "settled", "range": list(part), "namespaces": _fit_namespaces(namespaces)}


def superseding_event(reader: str, through: int) -> dict[str, Any]:
    """Return the event that requires *reader*'s entries up to *through* to be superseded."""
    return {"type": "superseding", "reader": reader, "through": through}


def superseded_event(
    reader: str,
    through: int,
    parts: Sequence[tuple[int, int]],
    redelivered_through: int | None = None,
) -> dict[str, Any]:
    """Return the event that passes *parts*, because *reader*'s source redelivers them."""
    ranges = [list(part) for part in parts]
    event = {"type": "superseded", "reader": reader, "through": through, "ranges": ranges}
    return event if redelivered_through is None else {**event, "asked": redelivered_through}


def replay_begun_event(first: int, last: int, namespace: str = "") -> dict[str, Any]:
    """Return the event that begins a replay."""
    begun = {"type": "replay", "first": first, "last": last}
    return {**begun, "namespace": namespace} if namespace else begun


def replay_advanced_event(through: int, generation: int) -> dict[str, Any]:
    """Return the event that settles the replay of *generation* up to *through*."""
    return {"type": "replayed", "through": through, "generation": generation}


def replay_cancelled_event() -> dict[str, Any]:
    """Return the event that ends a replay before its end."""
    return {"type": "replay-cancelled"}


def paused_event() -> dict[str, Any]:
    """Return the event that stops deliveries."""
    return {"type": "paused"}


def resumed_event() -> dict[str, Any]:
    """Return the event that ends a pause."""
    return {"type": "resumed"}


def step_event(through: int) -> dict[str, Any]:
    """Return the event that lets a paused route deliver up to *through*."""
    return {"type": "step", "through": through}


def retries_requested_event(offsets: Sequence[int], *, only: bool = False) -> dict[str, Any]:
    """Return the event that requests the delivery of parked entries."""
    event = {"type": "retries", "offsets": list(offsets)}
    return {**event, "only": True} if only else event


def retry_finished_event(offset: int) -> dict[str, Any]:
    """Return the event that ends the retry of one parked entry."""
    return {"type": "retried", "offset": offset}


def skip_begun_event(offsets: Sequence[int], followers: Sequence[int]) -> dict[str, Any]:
    """Return the event that skips parked entries and requests delivery of those behind them."""
    return {"type": "skipping", "offsets": list(offsets), "followers": list(followers)}


def skip_ended_event() -> dict[str, Any]:
    """Return the event that records that no copy of the skipped entries is left."""
    return {"type": "skipped"}


def apply_event(state: states.RouteState, event: dict[str, Any]) -> states.RouteState:
    """Return *state* after *event*. Only this function defines the meaning of events."""
    match event:
        case {"type": "snapshot"}:
            after = states.RouteState.from_json(event)
        case {"type": "settled", "range": part, "namespaces": namespaces}:
            after = states.settle(state, states.Range(*part), namespaces)
        case {"type": "superseding" | "superseded"}:
            after = _apply_superseding(state, event)
        case {"type": "replay", "first": first, "last": last}:
            after = states.begin_replay(state, first, last, event.get("namespace", ""))
        case {"type": "replayed", "through": through}:
            # Records of older versions have no generation: they mean the current one.
            generation = event.get("generation", state.generation)
            after = states.advance_replay(state, through, generation)
        case {"type": "replay-cancelled"}:
            after = states.cancel_replay(state)
        case {"type": "paused" | "resumed" | "step"}:
            after = _apply_pause(state, event)
        case {"type": "retries" | "retried" | "skipping" | "skipped"}:
            after = _apply_parked(state, event)
        case _:
            raise UnknownFormat(
                f"an offset log record has the unknown type {event.get('type')!r}; "
                "use the version that wrote it, or one that can read it"
            )
    return after


def _apply_parked(state: states.RouteState, event: dict[str, Any]) -> states.RouteState:
    match event["type"]:
        case "retries":
            only = event.get("only", False)
            return states.request_retries(state, tuple(event["offsets"]), only=only)
        case "retried":
            return states.finish_retry(state, event["offset"])
        case "skipping":
            return states.begin_skip(state, tuple(event["offsets"]), tuple(event["followers"]))
    return states.end_skip(state)


def _apply_superseding(state: states.RouteState, event: dict[str, Any]) -> states.RouteState:
    reader, through = event["reader"], event["through"]
    if event["type"] == "superseding":
        return states.begin_superseding(state, reader, through)
    parts = tuple((first, last) for first, last in event["ranges"])
    return states.supersede(state, reader, through, parts, event.get("asked"))


def fold_events(state: states.RouteState, events: Iterable[dict[str, Any]]) -> states.RouteState:
    """Return *state* after *events*, as :func:`apply_event` one by one. Most are consecutive."""
    run: dict[str, Any] | None = None
    for event in events:
        if run is not None and _follows_on(event, run["range"]):
            run["range"][1] = event["range"][1]
            run["namespaces"].update(event["namespaces"])
            continue
        if run is not None:
            state, run = apply_event(state, run), None
        if event.get("type") == "settled":
            run = {**event, "namespaces": dict(event["namespaces"])}
        else:
            state = apply_event(state, event)
    return state if run is None else apply_event(state, run)


def _follows_on(event: dict[str, Any], part: list[Any]) -> bool:
    """Return whether *event* settles the offsets right behind *part*, in the same way."""
    if event.get("type") != "settled":
        return False
    first, _, kind = event["range"]
    return bool(first == part[1] + 1 and kind == part[2])


def _apply_pause(state: states.RouteState, event: dict[str, Any]) -> states.RouteState:
    match event["type"]:
        case "paused":
            return states.pause(state)
        case "resumed":
            return states.resume(state)
    return states.step_to(state, event["through"])
