"""Readers, routes, kills, damage and repairs in any order, beside the simplest model of them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from crash_machines import run_machine
from crash_numbers import tiny
from disks.crashes import crash_states
from disks.simulated import SimulatedDisk, copied
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from log_tools import held_in, hurt

from transporter.errors import Corrupt
from transporter.log.commit_log import CommitLog
from transporter.log.format import SEGMENT_PREFIX_BYTES, SegmentHeader, header_length
from transporter.log.lock import LOCK
from transporter.log.reader import LogReader
from transporter.log.reserve import RESERVE
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import OffsetLog, proved_offset, read_state, route_folder
from transporter.offsets.parked import ParkedEntry, ParkedStore, ParkReason
from transporter.offsets.state import Range
from transporter.offsets.verify_repair import repair_log, verify

if TYPE_CHECKING:
    from collections.abc import Iterator

    Tree = dict[str, Any]

LOG = Path("/log")
ROUTE = "out"
PLACE = st.floats(0, 0.999)


class RepairMachine(RuleBasedStateMachine):
    """A repair keeps intact entries after any damage, and declares lost ones."""

    def __init__(self) -> None:
        """Make nothing yet."""
        super().__init__()
        self.stack = ExitStack()

    @initialize()
    def begin(self) -> None:
        """Start with an empty log and a route."""
        self.stack.close()
        self.stack.enter_context(tiny())
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
        """Append, without a repeated offset."""
        texts = [b"%d " % (self.given + n) + b"x" * size for n in range(rows)]
        first, last = self.log.append(messages_to_batch([Message("n", t) for t in texts]), "r")
        assert first > self.given
        self.given = last
        self.model |= dict(enumerate(texts, start=first))

    @rule(count=st.integers(1, 5))
    def settle(self, count: int) -> None:
        """Deliver, or ack, some more entries."""
        first = self.route.state.next_unsettled()
        if (last := min(first + count - 1, self.log.durable)) >= first:
            self.route.settle(Range(first, last), self.log.durable)
            self.route.sync()

    @rule()
    def replay(self) -> None:
        """Begin a replay, or go on with it."""
        state = self.route.state
        if state.replay is not None:
            self.route.advance_replay(state.replay.next + 1, state.generation)
        elif state.watermark >= 0:
            self.route.begin_replay(0, state.watermark)

    @rule()
    def park(self) -> None:
        """Park the next entry."""
        offset = self.route.state.next_unsettled()
        if offset not in self.model:
            return
        with LogReader(LOG, self.disk) as reader:
            entries = next(reader.read(offset, offset))
        store = ParkedStore(route_folder(LOG, ROUTE), self.disk)
        store.park(ParkedEntry(offset, entries, ParkReason("no", 1, 1)))
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
        """Damage files at rest, repair, and go on with the remains."""
        if clean:
            self.route.close()
            self.log.close()
        tree = self.die()
        segments = [name for name in tree if name.endswith(".log")]
        for how, which, where in hurts:
            files = sorted(_files(tree), key=lambda each: each[1])
            _hurt(*files[int(which * len(files))], how, where)
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
            # Neither meta nor any header is left, so nothing identifies the log.
            assert not any(_has_header(tree[name]) for name in tree if name.endswith(".log"))
            self.begin()
            return
        repair_log(LOG, health, 0, self.disk)
        again = verify(LOG, files=self.disk)
        assert again.is_sound, again
        self.open()
        kept = held_in(LOG, self.log.durable, self.disk)
        assert kept.items() <= self.model.items()
        declared = {each for first, last in again.lost for each in range(first, last + 1)}
        unproved = {each for each in self.model if each > health.through}
        front = set(range(min(kept, default=self.given + 1)))
        assert self.model.keys() - kept.keys() <= declared | unproved | front
        self.model = kept
        # Entries above every proof leave no trace.
        self.given = max(health.through, max(kept, default=-1))
        parked = set(ParkedStore(route_folder(LOG, ROUTE), self.disk).offsets())
        assert parked <= self.parked
        self.parked = parked

    def die(self) -> Tree:
        """Let the process die. Return everything that the disk holds."""
        images = crash_states(self.disk, Random(0), 4)
        whole = next((each for each in images if each.label == "everything survives"), None)
        tree: Tree = whole.tree if whole else next(crash_states(self.disk, Random(0), 1)).tree
        self.disk = SimulatedDisk(tree)
        return dict(copied(tree["log"]))

    @invariant()
    def the_log_is_the_model(self) -> None:
        """Compare the readable entries with the model."""
        if hasattr(self, "log"):
            assert held_in(LOG, self.log.durable, self.disk) == self.model

    @invariant()
    def the_route_is_within_the_log(self) -> None:
        """Check that the route never runs ahead and that its parked entries can be read."""
        if hasattr(self, "route"):
            assert read_state(LOG, ROUTE, self.disk).watermark <= self.log.durable
            store = ParkedStore(route_folder(LOG, ROUTE), self.disk)
            assert set(store.offsets()) == self.parked

    def teardown(self) -> None:
        """Restore the sizes."""
        self.stack.close()


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
    if (left := hurt(folder.pop(name), how, where)) is not None:
        folder[name] = left


@pytest.mark.timeout(1800)  # enough for --exhaustive on a busy machine
def test_the_repair_machine(*, exhaustive: bool) -> None:
    """A repair keeps intact entries after any damage, and declares the rest."""
    examples = 3000 if exhaustive else 25
    run_machine(RepairMachine, examples=examples, steps=25, exhaustive=exhaustive)


def test_a_loss_behind_a_declared_loss_declares_both() -> None:
    """A segment behind a lost one declares that loss and the gap declared in the lost segment."""
    machine = RepairMachine()
    machine.begin()
    try:
        machine.append(rows=1, size=0)
        machine.append(rows=1, size=0)
        machine.kill()
        machine.kill()
        machine.append(rows=1, size=0)
        second = ("flip", 0.375, 0.5)
        machine.damage_and_repair(clean=False, hurts=[second])
        assert verify(LOG, files=machine.disk).lost == ((1, 1),)
        machine.kill()
        machine.damage_and_repair(clean=False, hurts=[second])
        assert verify(LOG, files=machine.disk).lost == ((1, 2),)
        machine.the_log_is_the_model()
    finally:
        machine.teardown()
