"""Cycles of mount, check, work and power cut, and the promises each must have kept."""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from transporter.errors import TransporterError
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.reader import LogReader
from transporter.log.recovery import walk_tail
from transporter.log.segment import Segment, SegmentEnd, segment_bases, segment_name
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import OffsetLog, declared_routes, proved_offset, read_state
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from power.loop import Loop

ROUTE: Final = "orders"
READERS: Final = ("a", "b", "c", "d")
SEGMENT_BYTES: Final = 96 << 10
SIZES: Final = (10, 300, 3000, 20_000)
LONGEST: Final = 0.02
"""Seconds of work before a cut, at most."""
THOROUGH: Final = 25
"""Cycles after which every entry is read again, not only the new ones."""
_PAGE: Final = 4096


def payload(reader: str, number: int) -> bytes:
    """Return data that are unique, and that no compression makes small."""
    noise = random.Random(f"{reader}{number}")
    return b"%s/%d/" % (reader.encode(), number) + noise.randbytes(noise.choice(SIZES))


@dataclass
class Promises:
    """Promises of all cycles on one file system, and the remains after the cuts."""

    acked: dict[int, tuple[str, int]] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=lambda: dict.fromkeys(READERS, 0))
    """Every reader's newest number that was passed to an append, each only once."""
    settled: int = -1
    checked: int = -1
    """Offset up to which every entry was compared with the acked one."""
    newest: dict[str, int] = field(default_factory=dict)
    """Every reader's newest number in the log, up to ``checked``."""
    cycles: int = 0
    torn: int = 0
    unacked: int = 0
    """Entries that a cut left although they were not acked."""

    def check(self, log: CommitLog, *, again: bool = False) -> None:
        """Read the new entries, or all again: each is exact, and none is missing."""
        if again:
            self.checked, self.newest, self.unacked = -1, {}, 0
        found: dict[int, tuple[str, int]] = {}
        with LogReader(log.directory) as reader:
            for batch in reader.read(self.checked + 1, log.durable):
                offsets, data = (batch.column(name).to_pylist() for name in ("offset", "data"))
                found |= dict(zip(offsets, map(self._known, data), strict=True))
        assert list(found) == sorted(found)
        promised = {offset for offset in self.acked if offset > self.checked}
        missing = sorted(offset for offset in promised if found.get(offset) != self.acked[offset])
        assert not missing, f"acked and not there: {missing}"
        self.unacked += len(found) - len(promised)
        self.checked = max(self.checked, log.durable)
        assert log.positions == {name: str(number) for name, number in self.newest.items()}

    def _known(self, data: bytes) -> tuple[str, int]:
        name, number, _ = data.split(b"/", 2)
        reader, at = name.decode(), int(number)
        assert data == payload(reader, at), "altered"
        assert self.newest.get(reader, 0) < at <= self.asked[reader], "twice, or out of order"
        self.newest[reader] = at
        return reader, at


class Worker(threading.Thread):
    """Repeats *act* until it is refused, or until a stop."""

    def __init__(self, name: str, act: Callable[[], None], stop: threading.Event) -> None:
        super().__init__(name=name)
        self.problem: Exception | None = None
        self._act, self._stop_asked = act, stop

    def run(self) -> None:
        """Act. An error that is not one of ours is a finding."""
        try:
            while not self._stop_asked.is_set():
                self._act()
        except TransporterError:
            return
        except Exception as error:  # noqa: BLE001 - the cycle looks at it
            self.problem = error


def appends(
    log: CommitLog, reader: str, promises: Promises, cut: threading.Event
) -> Callable[[], None]:
    """Return an act that appends *reader*'s next message and records an ack before the *cut*.

    A sync that returns while the ioctl runs may succeed without effect (of 181 on plain files 137
    had none, on ext4 and XFS; of 25 000 before it each had). Where the power really goes, such a
    success reaches no one.
    """

    def act() -> None:
        number = promises.asked[reader] = promises.asked[reader] + 1
        batch = messages_to_batch([Message("n", payload(reader, number), b"k")])
        offset, _ = log.append(batch, reader, str(number))
        assert offset not in promises.acked, "given twice"
        if not cut.is_set():
            promises.acked[offset] = (reader, number)

    return act


def settles(
    log: CommitLog, offsets: OffsetLog, promises: Promises, cut: threading.Event
) -> Callable[[], None]:
    """Return an act that settles all durable entries, and syncs now and then, until the *cut*."""

    def act() -> None:
        first = offsets.state.next_unsettled()
        last = log.wait_beyond(first - 1, 0.002)
        if last >= first:
            offsets.settle(Range(first, last), last)
        if last % 3 == 0:
            offsets.sync()
            if not cut.is_set():
                promises.settled = offsets.state.watermark

    return act


def writes_back(
    loop: Loop, directory: Path, chance: random.Random, cut: threading.Event
) -> Callable[[], None]:
    """Return an act that writes a page of the newest segment back, as the kernel may."""
    files = RealFileSystem()

    def act() -> None:
        with suppress(OSError):
            path = directory / segment_name(segment_bases(files, directory)[-1])
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                page = chance.randrange(path.stat().st_size // _PAGE + 1)
                loop.write_back(descriptor, page * _PAGE, _PAGE)
            finally:
                os.close(descriptor)
        cut.wait(0.0005)

    return act


def cycle(loop: Loop, promises: Promises, seed: int, options: str = "") -> None:
    """Mount, open and check the log, work, cut the power at a random moment, unmount."""
    loop.mount(options)
    try:
        with _opened(loop.place / "log", promises) as (log, offsets):
            _work(loop, log, offsets, promises, random.Random(seed))
    finally:
        _close_all(loop.place)
        loop.unmount()
    promises.cycles += 1


def check_all(loop: Loop, promises: Promises) -> None:
    """Mount, and read every entry again."""
    loop.mount()
    try:
        with _opened(loop.place / "log", promises) as (log, _):
            promises.check(log, again=True)
    finally:
        _close_all(loop.place)
        loop.unmount()


@contextmanager
def _opened(directory: Path, promises: Promises) -> Iterator[tuple[CommitLog, OffsetLog]]:
    """Open both logs, which must be possible, and compare them with the promises."""
    with ExitStack() as stack:
        try:
            promises.torn += _is_torn(directory)
            log = CommitLog.open(
                directory, proved=lambda: proved_offset(directory), segment_bytes=SEGMENT_BYTES
            )
            stack.callback(_close, log)
            promises.check(log, again=promises.cycles % THOROUGH == THOROUGH - 1)
            _check_route(directory, promises)
            offsets = OffsetLog(directory, ROUTE)
            stack.callback(_close, offsets)
        except TransporterError as error:
            raise AssertionError(f"a legal state was refused: {error}") from error
        yield log, offsets


def _check_route(directory: Path, promises: Promises) -> None:
    if promises.settled >= 0:
        assert ROUTE in declared_routes(directory)
        assert read_state(directory, ROUTE).watermark >= promises.settled


def _close(log: CommitLog | OffsetLog) -> None:
    # Without power a close fails, which must not hide an earlier problem.
    with suppress(TransporterError):
        log.close()


def _is_torn(directory: Path) -> bool:
    """Return true if recovery will have something to cut: a bad end, or a bad payload."""
    files = RealFileSystem()
    bases = segment_bases(files, directory)
    if not bases:
        return False
    with closing(Segment(files, directory / segment_name(bases[-1]))) as segment:
        walk = walk_tail(files, segment)
        whole = all(segment.is_intact(frame) for frame in walk.frames)
        return walk.stop.end is SegmentEnd.BAD or not whole


def _work(
    loop: Loop, log: CommitLog, offsets: OffsetLog, promises: Promises, chance: random.Random
) -> None:
    cut = threading.Event()
    acts = {f"reader-{name}": appends(log, name, promises, cut) for name in READERS}
    acts["route"] = settles(log, offsets, promises, cut)
    acts["write-back"] = writes_back(loop, log.directory, chance, cut)
    workers = [Worker(name, act, cut) for name, act in acts.items()]
    for worker in workers:
        worker.start()
    time.sleep(chance.uniform(0, LONGEST))
    cut.set()
    loop.cut_power()
    for worker in workers:
        worker.join()
    problems = [worker.problem for worker in workers if worker.problem]
    assert not problems, problems


def _close_all(place: Path) -> None:
    """Close files that a failed call left open below *place*, as the end of the process does."""
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if descriptor.readlink().is_relative_to(place):
                os.close(int(descriptor.name))
