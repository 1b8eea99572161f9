"""Readers, routes, kills, damage and repairs in any order, beside the simplest model of them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from disks.crashes import crash_states
from disks.simulated import SimulatedDisk
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from transporter.errors import Corrupt
from transporter.log.commit_log import CommitLog
from transporter.log.format import SEGMENT_PREFIX_BYTES, SegmentHeader, header_length
from transporter.log.lock import LOCK
from transporter.log.reader import LogReader
from transporter.log.reserve import RESERVE
from transporter.message import Message, messages_to_batch
from transporter.offsets.health import mend, verify
from transporter.offsets.offset_log import OffsetLog, proved_offset, read_state, route_folder
from transporter.offsets.parked import Parked, ParkedStore, Reason
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from collections.abc import Iterator

    Tree = dict[str, Any]

LOG = Path("/log")
ROUTE = "out"
PLACE = st.floats(0, 0.999)


def held(disk: SimulatedDisk, last: int) -> dict[int, bytes]:
    """Return what can be read up to *last*."""
    with LogReader(LOG, disk) as reader:
        return {
            row["offset"]: row["data"]
            for batch in reader.read(reader.first_offset(), last)
            for row in batch.select(["offset", "data"]).to_pylist()
        }


class RepairMachine(RuleBasedStateMachine):
    """What is whole is kept, whatever is damaged, and what is lost is declared."""

    def __init__(self) -> None:
        """Make files, reserves and strides tiny."""
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("transporter.log.active.PREALLOCATION", 2048)
        self.patch.setattr("transporter.log.index.STRIDE", 900)
        self.patch.setattr("transporter.log.reserve.RESERVE_BYTES", 64)
        self.patch.setattr("transporter.offsets.offset_log.FILE_BYTES", 1024)

    @initialize()
    def begin(self) -> None:
        """Start with an empty log and a route."""
        self.disk = SimulatedDisk()
        self.model: dict[int, bytes] = {}
        self.given = -1
        self.parked: set[int] = set()
        self.open()

    def open(self) -> None:
        """Open the log and its route."""
        self.log = CommitLog.open(
            LOG,
            files=self.disk,
            segment_bytes=1500,
            compression=None,
            proved=lambda: proved_offset(LOG, self.disk),
        )
        self.route = OffsetLog(LOG, ROUTE, self.disk)

    @rule(rows=st.integers(1, 3), size=st.sampled_from([0, 300]))
    def append(self, rows: int, size: int) -> None:
        """Append; no offset is given twice."""
        texts = [b"%d " % (self.given + n) + b"x" * size for n in range(rows)]
        first, last = self.log.append(messages_to_batch([Message("n", t) for t in texts]), "r")
        assert first > self.given
        self.given = last
        self.model |= dict(enumerate(texts, start=first))

    @rule(count=st.integers(1, 5))
    def settle(self, count: int) -> None:
        """Deliver, or ack, some more entries."""
        first = self.route.state.next_live()
        if (last := min(first + count - 1, self.log.durable)) >= first:
            self.route.settle(Range(first, last), self.log.durable)
            self.route.sync()

    @rule()
    def replay(self) -> None:
        """Begin a replay, or go on with it."""
        state = self.route.state
        if state.replay is not None:
            self.route.advance_replay(state.replay.next + 1)
        elif state.watermark >= 0:
            self.route.begin_replay(0, state.watermark)

    @rule()
    def park(self) -> None:
        """Park the next entry."""
        offset = self.route.state.next_live()
        if offset not in self.model:
            return
        with LogReader(LOG, self.disk) as reader:
            entries = next(reader.read(offset, offset))
        store = ParkedStore(route_folder(LOG, ROUTE), self.disk)
        store.park(Parked(offset, entries, Reason("no", 1, 1)))
        self.route.settle(Range(offset, offset, "parked"), self.log.durable)
        self.parked.add(offset)

    @rule()
    def reopen(self) -> None:
        """Stop cleanly and start again."""
        self.route.close()
        self.log.close()
        self.open()

    @rule()
    def kill(self) -> None:
        """Start again after a kill."""
        self.die()
        self.open()

    @rule(
        hurts=st.lists(
            st.tuples(st.sampled_from(["flip", "cut", "clear", "remove"]), PLACE, PLACE),
            min_size=1,
            max_size=3,
        ),
        clean=st.booleans(),
    )
    def damage_and_repair(self, hurts: list[tuple[str, float, float]], *, clean: bool) -> None:
        """Damage files at rest, repair, and go on with what is left."""
        if clean:
            self.route.close()
            self.log.close()
        tree = self.die()
        segments = [name for name in tree if name.endswith(".log")]
        for hurt in hurts:
            files = sorted(_files(tree), key=lambda each: each[1])
            _hurt(*files[int(hurt[1] * len(files))], hurt[0], hurt[2])
        if not any(name.endswith(".log") and tree[name] for name in tree):
            # With every segment and perhaps meta gone there is nothing to go on with.
            tree[segments[0]] = b"gone"
            if "meta" not in tree:
                self.begin()
                return
        self.disk = SimulatedDisk({"log": tree})
        try:
            health = verify(LOG, files=self.disk)
        except Corrupt:
            # Neither meta nor any header is left, so nobody knows which log this was.
            assert not any(_has_header(tree[name]) for name in tree if name.endswith(".log"))
            self.begin()
            return
        mend(LOG, 0, self.disk)
        again = verify(LOG, files=self.disk)
        assert again.sound, again
        self.open()
        kept = held(self.disk, self.log.durable)
        assert kept.items() <= self.model.items()
        declared = {each for first, last in again.lost for each in range(first, last + 1)}
        unproved = {each for each in self.model if each > health.through}
        front = set(range(min(kept, default=self.given + 1)))
        assert self.model.keys() - kept.keys() <= declared | unproved | front
        self.model = kept
        # Of entries above every proof nobody knows any more that they were there.
        self.given = max(health.through, max(kept, default=-1))
        parked = set(ParkedStore(route_folder(LOG, ROUTE), self.disk).offsets())
        assert parked <= self.parked
        self.parked = parked

    def die(self) -> Tree:
        """Let the process die; return what the disk holds, all of it."""
        images = crash_states(self.disk, Random(0), 4)
        whole = next((each for each in images if each.label == "everything survives"), None)
        tree: Tree = whole.tree if whole else next(crash_states(self.disk, Random(0), 1)).tree
        self.disk = SimulatedDisk(tree)
        return dict(_copied(tree["log"]))

    @invariant()
    def the_log_is_the_model(self) -> None:
        """Compare what can be read with what must be there."""
        if hasattr(self, "log"):
            assert held(self.disk, self.log.durable) == self.model

    @invariant()
    def the_route_is_within_the_log(self) -> None:
        """Check that the route never runs ahead and that its parked entries can be read."""
        if hasattr(self, "route"):
            assert read_state(LOG, ROUTE, self.disk).watermark <= self.log.durable
            store = ParkedStore(route_folder(LOG, ROUTE), self.disk)
            assert set(store.offsets()) == self.parked

    def teardown(self) -> None:
        """Put the sizes back."""
        self.patch.undo()


def _copied(tree: Tree) -> Tree:
    return {name: _copied(node) if isinstance(node, dict) else node for name, node in tree.items()}


def _files(tree: Tree) -> Iterator[tuple[Tree, str]]:
    for name, node in tree.items():
        if isinstance(node, dict):
            if name != "quarantine":
                yield from _files(node)
        elif name not in (LOCK, RESERVE):
            yield tree, name


def _has_header(data: bytes) -> bool:
    try:
        length = header_length(data[:SEGMENT_PREFIX_BYTES], "")
        SegmentHeader.decode(data[:length], "")
    except Corrupt:
        return False
    return True


def _hurt(folder: Tree, name: str, how: str, where: float) -> None:
    data = bytearray(folder[name])
    byte = int(where * len(data))
    if how == "remove" or not data:
        del folder[name]
        return
    if how == "flip":
        data[byte] ^= 0x20
    elif how == "cut":
        del data[byte:]
    elif how == "clear":
        data[byte : byte + 200] = bytes(len(data[byte : byte + 200]))
    folder[name] = bytes(data)


TestRepairMachine = RepairMachine.TestCase
TestRepairMachine.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
