"""A fixed life of a log and of one route, on any disk, and the promises afterwards."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest
from log_tools import held

from transporter.errors import EnvironmentFault, LogFull, LogPoisoned
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import BACK_PRESSURE
from transporter.log.reader import LogReader
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import (
    OffsetLog,
    declared_routes,
    proved_offset,
    read_state,
    route_folder,
)
from transporter.offsets.parked import ParkedEntry, ParkedStore, ParkReason
from transporter.offsets.state import Range, RouteState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from disks.faulty import FaultyDisk

ROUTE: Final = "orders"
SEGMENT_BYTES: Final = 2500
"""Two or three frames, so that the workload rolls often."""


@contextmanager
def small_files() -> Iterator[None]:
    """Make reserves, strides and offset logs so small that a short life reaches their limits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transporter.log.active_segment.PREALLOCATION", 2048)
        patch.setattr("transporter.log.index.STRIDE", 900)
        patch.setattr("transporter.offsets.offset_log.FILE_BYTES", 1200)
        yield


@dataclass
class Ledger:
    """The acknowledgements and the requests of the outside world."""

    acked: dict[int, bytes] = field(default_factory=dict)
    asked: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    """Every row that was ever passed to an append: its reader, and the position behind it."""
    states: list[RouteState] = field(default_factory=lambda: [RouteState()])
    """The route's last reported state, and those that an unanswered call may leave."""
    synced: int = -1
    """The highest watermark of the route that a sync has covered."""
    parked: dict[int, bytes] = field(default_factory=dict)

    def next_rows(self, reader: str, rows: int) -> tuple[pa.RecordBatch, str]:
        """Return a batch unique to this call, and the position behind it."""
        number = 1 + max((position for _, position in self.asked.values()), default=0)
        data = [b"%d/%d" % (number, row) for row in range(rows)]
        self.asked |= dict.fromkeys(data, (reader, number))
        batch = messages_to_batch(
            [Message("n", each, b"k%d" % row) for row, each in enumerate(data)]
        )
        return batch, str(number)

    def check(self, held: dict[int, bytes], positions: dict[str, str]) -> None:
        """Compare the entries of a log with the promises about them."""
        missing = {offset: data for offset, data in self.acked.items() if held.get(offset) != data}
        assert not missing, f"acked and not there: {missing}"
        assert set(held.values()) <= set(self.asked), "never appended"
        assert len(set(held.values())) == len(held), "appended once, there twice"
        newest: dict[str, str] = {}
        for data in held.values():
            reader, position = self.asked[data]
            newest[reader] = str(max(position, int(newest.get(reader, 0))))
        assert positions == newest


class Life:
    """One engine's life on a disk, with every request entered in the ledger.

    It asserts its own promises while it lives: nothing is acked over a failed sync, poison stays, a
    refused append is taken back and may be repeated.
    """

    def __init__(self, directory: Path, disk: FaultyDisk, ledger: Ledger) -> None:
        self._directory, self._disk, self._ledger = directory, disk, ledger
        self.log: CommitLog = self._told(self._open)
        self.offsets: OffsetLog = self._told(lambda: OffsetLog(directory, ROUTE, disk))
        self.parked = ParkedStore(self.offsets.folder, disk)

    def append(self, reader: str, rows: int) -> None:
        """Append *rows*, which must succeed, at the latest when the disk is healed."""
        batch, position = self._ledger.next_rows(reader, rows)
        try:
            first, last = self._patiently(lambda: self.log.append(batch, reader, position))
        except LogPoisoned:
            self._stay_poisoned(lambda: self.log.append(batch, reader, position))
            raise
        assert first > max(self._ledger.acked, default=-1)
        assert last == self.log.durable == first + rows - 1
        data = batch.column("data").to_pylist()
        self._ledger.acked |= dict(enumerate(data, start=first))

    def settle(self, *, sync: bool, kind: str = "acked") -> None:
        """Settle all durable entries."""
        first, last = self.offsets.state.next_unsettled(), self.log.durable
        self._move(lambda: self.offsets.settle(Range(first, last, kind), last, {"n": last}))
        if sync:
            self._sync()

    def park(self) -> None:
        """Park the next entry and settle it as parked."""
        offset = self.offsets.state.next_unsettled()
        with LogReader(self._directory, self._disk) as reader:
            (entries,) = self._told(lambda: list(reader.read(offset, offset)))
        entry = ParkedEntry(offset, entries, ParkReason("no room at the inn", 2, 0))
        self._patiently(lambda: self.parked.park(entry))
        self._ledger.parked[offset] = entries.column("data")[0].as_py()
        last = self.log.durable
        self._move(lambda: self.offsets.settle(Range(offset, offset, "parked"), last))
        self._sync()

    def retry_parked(self) -> None:
        """Request the parked entry's delivery, and record that it happened."""
        (offset,) = self._ledger.parked
        self._move(lambda: self.offsets.request_retries([offset]))
        self._ledger.parked.pop(offset)
        self._told(lambda: self.parked.remove(offset))
        self._move(lambda: self.offsets.finish_retry(offset))
        self._told(lambda: self.offsets.audit("parked retry", offset=offset))

    def replay(self) -> None:
        """Replay the first entries."""
        self._move(lambda: self.offsets.begin_replay(0, 3))
        self._move(lambda: self.offsets.advance_replay(1, 1))
        self._move(lambda: self.offsets.advance_replay(3, 1))

    def read(self) -> None:
        """Read everything, and check that exactly the acked entries are readable."""
        with LogReader(self._directory, self._disk) as reader:
            found = self._told(lambda: held(reader, self.log.durable))
        self._ledger.check(found, self.log.positions)

    def close(self) -> None:
        """Stop cleanly."""
        self._move(lambda: self.offsets.close() or self.offsets.state)
        # A mark that does not become durable is not an ack: the next open recovers instead.
        self.log.close()

    def _open(self) -> CommitLog:
        return CommitLog.open(
            self._directory,
            proved=lambda: proved_offset(self._directory, self._disk),
            segment_bytes=SEGMENT_BYTES,
            compression=None,
            files=self._disk,
        )

    def _sync(self) -> None:
        self._move(lambda: self.offsets.sync() or self.offsets.state)
        self._ledger.synced = self.offsets.state.watermark

    def _told(self, ask: Callable[[], Any]) -> Any:
        failed = self._disk.failed_syncs
        answer = ask()
        assert self._disk.failed_syncs == failed, "acked over a failed sync"
        return answer

    def _patiently(self, ask: Callable[[], Any]) -> Any:
        """Try, and after a refusal heal the disk and succeed (Invariant 14)."""
        try:
            return self._told(ask)
        except (LogFull, EnvironmentFault) as error:
            _check_kind(error)
            self._disk.heal()
            return self._told(ask)

    def _move(self, ask: Callable[[], RouteState]) -> None:
        """Let the route's state move. The effect of an unanswered call may or may not be there.

        The same is true of a change that waits for room (Invariant 14): a kill delivers it again.
        """
        ledger = self._ledger
        try:
            state = self._patiently(ask)
        except LogPoisoned:
            ledger.states.append(self.offsets.state)
            self._stay_poisoned(self.offsets.cancel_replay)
            raise
        ledger.states = [*ledger.states, state] if self.offsets.pending else [state]

    def _stay_poisoned(self, ask: Callable[[], object]) -> None:
        """Retry repeatedly, with a healed disk, and check for poison (Invariant 13)."""
        self._disk.heal()
        for _ in range(3):
            with pytest.raises(LogPoisoned):
                ask()


def _check_kind(error: LogFull | EnvironmentFault) -> None:
    """Check that only errors that waiting may mend are retriable (Invariant 14)."""
    assert isinstance(error.__cause__, OSError)
    assert error.retriable is (error.__cause__.errno in BACK_PRESSURE)


def live(directory: Path, disk: FaultyDisk, ledger: Ledger) -> None:
    """Live three lives: one that ends cleanly, one that is killed, one that recovers and ends."""
    life = Life(directory, disk, ledger)
    for number in range(4):
        life.append("a", 2)
        life.append("b", 1)
        life.settle(sync=number % 2 == 0)
    life.append("a", 1)
    life.park()
    life.replay()
    life.read()
    life.retry_parked()
    life.close()
    life = Life(directory, disk, ledger)
    life.append("b", 2)
    life.settle(sync=False)
    life.append("a", 1)
    disk.kill()
    life = Life(directory, disk, ledger)
    life.append("b", 1)
    life.settle(sync=True)
    life.read()
    life.close()


def check_restart(directory: Path, disk: Any, ledger: Ledger, *, power_cut: bool = False) -> None:
    """Start again on a healthy disk, twice: every promise holds, and the log goes on."""
    _check_route(directory, disk, ledger, power_cut=power_cut)
    for _ in range(2):
        with CommitLog.open(
            directory, proved=lambda: proved_offset(directory, disk), files=disk
        ) as log:
            with LogReader(directory, disk) as reader:
                found = held(reader, log.durable)
            ledger.check(found, log.positions)
            given = max([*found, *ledger.acked], default=-1)
            batch, position = ledger.next_rows("c", 1)
            first, _ = log.append(batch, "c", position)
            assert first > given  # Invariant 4
            ledger.acked[first] = batch.column("data")[0].as_py()


def _check_route(directory: Path, disk: Any, ledger: Ledger, *, power_cut: bool) -> None:
    """Check the route's state and its parked entries."""
    declared = ROUTE in declared_routes(directory, disk)
    state = read_state(directory, ROUTE, disk) if declared else RouteState()
    assert state.watermark >= ledger.synced
    # A power cut takes changes that no sync has covered. A kill takes nothing.
    assert power_cut or state in ledger.states
    assert state.highest_offset() <= max(ledger.acked, default=-1)
    for offset, data in ledger.parked.items():
        parked = ParkedStore.read_entry(route_folder(directory, ROUTE), offset, disk)
        assert parked.entries.column("data")[0].as_py() == data
    if declared:
        with OffsetLog(directory, ROUTE, disk) as offsets:
            assert offsets.state == state
