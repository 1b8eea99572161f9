"""Promises that must hold after any crash of a log and its routes, and their check.

:func:`examine` opens a disk with the real code and reports its contents. :func:`judge` compares the
report with the truth about the workload. Neither depends on how the disk came to be as it is.
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from transporter.audit import AUDIT, read_audit
from transporter.errors import Corrupt
from transporter.log import format as layout
from transporter.log.commit_log import CommitLog
from transporter.log.reader import LogReader
from transporter.log.segment import Segment, segment_bases, segment_name
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import (
    NAMES,
    OffsetLog,
    declared_routes,
    proved_offset,
    read_state,
    route_folder,
)
from transporter.offsets.parked import ParkedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from disks.simulated import SimulatedDisk

    from transporter.offsets.state import RouteState

LOG: Final = Path("/log")
SEGMENT_BYTES: Final = 3500
READER: Final = "examiner"


class Violation(AssertionError):
    """A promise that was broken."""


@dataclass(slots=True)
class Frame:
    """An append of the surviving lineage. ``payload`` is set once it was read and right."""

    first: int
    data: tuple[bytes, ...]
    reader: str
    position: str | None
    payload: bytes | None = None

    @property
    def last(self) -> int:
        """The last offset."""
        return self.first + len(self.data) - 1

    def matches(self, first: int, last: int, payload: bytes) -> bool:
        """Return true if these are this frame's offsets and, byte by byte, its entries."""
        if (first, last) != (self.first, self.last):
            return False
        if self.payload is None:
            entries = layout.decode_payload(payload)
            offsets = entries.column("offset").to_pylist()
            if offsets != list(range(first, last + 1)):
                return False
            if entries.column("data").to_pylist() != list(self.data):
                return False
            self.payload = payload
        return payload == self.payload


@dataclass
class RouteTruth:
    """The truth about one route: the states to which a crash may go back, ``None`` for no route.

    ``parked`` records for each offset whether a copy must be there (``True``), must not
    (``False``), or may (``None``: it is being parked or removed).
    """

    legal: list[RouteState | None]
    parked: dict[int, bool | None] = field(default_factory=dict)
    settled: set[int] = field(default_factory=set)


@dataclass
class Truth:
    """The acts of the workload, and the acknowledgements it gave.

    - ``must``: the highest offset that was acked, reported to a source or seen by a route
    - ``given``: the highest offset that any party may hold
    - ``proved``: the highest offset that the disk proves durable
    - ``moving``: a rename of a route in flight
    - ``clean``: the log was stopped cleanly, and no process has begun to open it
    - ``audits``: the reasons that the audit file must keep for ever
    """

    frames: list[Frame] = field(default_factory=list)
    must: int = -1
    given: int = -1
    proved: int = -1
    epoch: int = 0
    routes: dict[str, RouteTruth] = field(default_factory=dict)
    moving: tuple[str, str] | None = None
    clean: bool = False
    audits: list[str] = field(default_factory=list)

    def killed(self, found: Outcome) -> None:
        """Go on from the state a killed process has left, which the disk may still lose."""
        self.frames = [frame for frame in self.frames if frame.last <= found.last]
        for name, route in list(self.routes.items()):
            if name in found.routes:
                route.legal.append(found.routes[name].state)
                route.settled = settled_by(found.routes[name].state)
            else:
                del self.routes[name]

    def cut(self, found: Outcome) -> None:
        """Go on from the state a power cut has left."""
        self.frames = [frame for frame in self.frames if frame.last <= found.last]
        self.given = max(self.given, found.visible, found.last)
        for name, route in list(self.routes.items()):
            here = found.routes.get(name)
            route.legal = [here.state if here else None]
            if here is None:
                del self.routes[name]
                continue
            route.parked = {n: n in here.parked for n in route.parked}
            route.settled = settled_by(here.state)
        self.moving = None


@dataclass(frozen=True, slots=True)
class RouteFound:
    """A route in the state a recovery finds."""

    state: RouteState
    parked: frozenset[int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state a recovery finds.

    ``frames`` are ``all`` or those of the last two segments. ``visible`` is the highest offset in
    an intact header that was there before it.
    """

    frames: tuple[tuple[int, int, bytes], ...]
    all: bool
    last: int
    next: int
    epoch: int
    recovered: bool
    visible: int
    positions: dict[str, str]
    routes: dict[str, RouteFound]
    audits: frozenset[str] = frozenset()


def messages(data: tuple[bytes, ...]) -> pa.RecordBatch:
    """Return a batch with a key for each of *data*."""
    return messages_to_batch([Message("n", each, b"k%d" % (n % 2)) for n, each in enumerate(data)])


EXTRA: Final = messages((b"one more",))


def open_log(disk: SimulatedDisk, clock: Callable[[], int] = lambda: 10**6) -> CommitLog:
    """Open the log as the engine does."""
    return CommitLog.open(
        LOG,
        proved=lambda: proved_offset(LOG, disk),
        segment_bytes=SEGMENT_BYTES,
        compression=None,
        files=disk,
        clock=clock,
    )


def examine(
    disk: SimulatedDisk, *, whole: bool, opened: Callable[[], None] | None = None
) -> Outcome:
    """Recover the log on *disk*, and report its contents.

    *opened* is called when the log and the routes are open. With *whole*, check all segments, not
    just the last two, and the routes. Then append one more, stop cleanly, and check that the next
    start finds it all.
    """
    visible = _visible(disk)
    routes = dict(_routes(disk))
    log = open_log(disk)
    frames = _frames(disk, log.durable, whole=whole)
    outcome = Outcome(
        frames=frames,
        all=whole,
        last=log.durable,
        next=log._active.next,
        epoch=log.epoch,
        # A segment of this epoch is a copy of one left by an unclean stop.
        recovered=log._active.header.epoch == log.epoch,
        visible=visible,
        positions=log.positions,
        routes=routes,
        audits=frozenset(_audits(disk)),
    )
    for name, found in routes.items() if whole or opened else ():
        with OffsetLog(LOG, name, disk) as offsets:
            _check(offsets.state == found.state, "a route's state changed when it was opened")
    if opened is not None:
        opened()
    if whole:
        _go_on(disk, log, outcome)
    return outcome


def _go_on(disk: SimulatedDisk, log: CommitLog, before: Outcome) -> None:
    """Append one more, stop, start again, and check that nothing is missing or has moved."""
    first, last = log.append(EXTRA, READER, "position")
    _check(first == last == before.next, f"offset {first} given where {before.next} was next")
    log.close()
    size = len(disk.content(log._active.path))
    with open_log(disk) as again:
        _check(again.durable == last, f"a clean stop kept {again.durable} of {last}")
        _check(again._active.byte == size, "a log that was stopped cleanly was recovered")
        _check(again.epoch > before.epoch, "the epoch did not grow")
        kept = again.positions
    _check(kept == before.positions | {READER: "position"}, f"positions {kept} after a stop")
    frames = _frames(disk, last, whole=True)
    _check(frames[:-1] == before.frames, "a clean stop changed entries")
    entries = layout.decode_payload(frames[-1][2])
    _check(entries.column("data").to_pylist() == [b"one more"], "the entry appended is another")


def _frames(disk: SimulatedDisk, last: int, *, whole: bool) -> tuple[tuple[int, int, bytes], ...]:
    """Read the log, or its last two segments. The reader verifies the checksums."""
    bases = segment_bases(disk, LOG)
    with LogReader(LOG, disk) as reader:
        found = []
        for segment, frame, _ in reader.frames(bases[0] if whole else bases[-2:][0], last):
            segment.entries(frame)
            found.append((frame.first, frame.last, segment.read_raw(frame)[1]))
        return tuple(found)


def _visible(disk: SimulatedDisk) -> int:
    """Return the highest offset in any intact frame header of the last segment."""
    bases = segment_bases(disk, LOG)
    if not bases:
        return -1
    with closing(Segment(disk, LOG / segment_name(bases[-1]))) as segment:
        identity = segment.header.segment_id
    data = disk.content(LOG / segment_name(bases[-1]))
    highest, byte = -1, data.find(layout.FRAME_MAGIC)
    while byte >= 0:
        frame = layout.FrameHeader.decode(data[byte : byte + 92], identity, byte)
        if frame is not None and frame.end <= len(data):
            highest = max(highest, frame.last)
        byte = data.find(layout.FRAME_MAGIC, byte + 1)
    return highest


def _routes(disk: SimulatedDisk) -> Iterator[tuple[str, RouteFound]]:
    for name in declared_routes(LOG, disk):
        folder = route_folder(LOG, name)
        # A folder without the first file is a route whose declaration was in progress.
        if NAMES[0] in disk.names(folder):
            parked = ParkedStore(folder, disk).offsets()
            state = read_state(LOG, name, disk)
            yield name, RouteFound(state, frozenset(parked))


def _audits(disk: SimulatedDisk) -> Iterator[str]:
    """Yield the readable reasons in the audit file, as an operator would look for them."""
    if AUDIT not in disk.names(LOG):
        return
    for change in read_audit(disk.content(LOG / AUDIT).split(b"\n")):
        yield str(change.get("reason"))


def settled_by(state: RouteState) -> set[int]:
    """Return every offset that *state* calls settled."""
    settled = set(range(state.watermark + 1))
    for part in state.above:
        settled.update(range(part.first, part.last + 1))
    return settled


def judge(found: Outcome, truth: Truth) -> None:
    """Raise :class:`Violation` when *found* breaks a promise."""
    kept = [frame for frame in truth.frames if frame.last <= found.last]
    read = kept[-len(found.frames) :] if found.frames else []
    _check(len(read) == len(found.frames), "the log holds more than was appended")
    for frame, (first, last, payload) in zip(read, found.frames, strict=True):
        _check(
            frame.matches(first, last, payload),
            f"{first}..{last} are not the entries appended as {frame.first}..{frame.last}",
        )
    _check(not found.all or len(read) == len(kept), "entries are missing in sealed segments")
    end = kept[-1].last if kept else -1
    _check(found.last == end, f"the log says that it ends at {found.last}, but holds {end}")
    _check(end >= truth.must, f"the log ends at {end}, but {truth.must} was promised")
    least = max(truth.given, found.visible, end)
    _check(found.next > least, f"{found.next} is next, but {least} was given")
    _check(not (truth.clean and found.recovered), "a log that was stopped cleanly is recovered")
    _check(found.epoch > truth.epoch, f"epoch {found.epoch} after {truth.epoch}")
    positions = {f.reader: f.position for f in kept if f.position is not None}
    _check(found.positions == positions, f"positions {found.positions}, not {positions}")
    missing = set(truth.audits) - found.audits
    _check(not missing, f"the audit file lost {missing}")
    _judge_routes(found, truth)


def _judge_routes(found: Outcome, truth: Truth) -> None:
    _check(truth.routes.keys() >= found.routes.keys(), f"routes {list(found.routes)}")
    if truth.moving:
        present = [name for name in truth.moving if name in found.routes]
        _check(len(present) == 1, f"a rename left {present}")
    for name, route in truth.routes.items():
        here = found.routes.get(name)
        if here is None:
            _check(None in route.legal, f"route {name} is gone")
        else:
            _judge_route(name, here, route, found.last)


def _judge_route(name: str, here: RouteFound, route: RouteTruth, last: int) -> None:
    _check(here.state in route.legal, f"route {name}: {here.state}, not one of {route.legal}")
    _check(
        here.state.highest_offset() <= last,
        f"route {name} is ahead of the log, which ends at {last}",
    )
    # A copy being parked may or may not be there. Once the record is parked, it must be.
    recorded = settled_by(here.state) - route.settled if None in route.parked.values() else set()
    for offset, known in route.parked.items():
        there = True if known is None and offset in recorded else known
        if there is not None:
            _check((offset in here.parked) == there, f"route {name}: parked {offset}: {not there}")
    _check(here.parked <= route.parked.keys(), f"route {name}: parked {set(here.parked)}")


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)


def damaged_is_refused(disk: SimulatedDisk, proved: int, draw: Callable[[int], int]) -> None:
    """Damage a frame that was proved durable. An open or a read must report it, never skip it."""
    bases = segment_bases(disk, LOG)
    if not bases:
        return
    path = LOG / segment_name(bases[-1])
    with closing(Segment(disk, path)) as segment:
        frames = [frame for frame in segment.frames() if frame.last <= proved]
    if not frames:
        return
    frame = frames[draw(len(frames))]
    byte = frame.byte + draw(frame.payload_byte + frame.payload_length - frame.byte)
    file = disk.open(path, write=True)
    file.pwrite(bytes([file.pread(1, byte)[0] ^ 1 << draw(8)]), byte)
    with suppress(Corrupt):
        log = open_log(disk)
        passed_over = f"damage at byte {byte} of {path.name}, at or below {proved}, was passed over"
        _check(log.durable >= proved, passed_over)
        with LogReader(LOG, disk) as reader:
            for segment, each, _ in reader.frames(reader.first_offset(), log.durable):
                segment.entries(each)
                segment.source(each)
        raise Violation(passed_over)
