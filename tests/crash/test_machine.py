"""The log and its routes as a state machine, beside the simplest model of them."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from crash_hunt import Hunt, Plan
from crash_machines import run_machine
from crash_numbers import tiny
from crash_oracle import LOG, settled_by
from crash_world import World
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from transporter.log.reader import LogReader
from transporter.offsets.parked import ParkedStore

DRAWN = st.integers(0, 1 << 16)
"""A rule's random choice, where smaller is simpler."""
PLAN = Plan(states=5, nested=1, whole_every=10, nested_every=200, damage_every=100)


class LogMachine(RuleBasedStateMachine):
    """The model stays right under any acts of readers, routes, operators, kills and power cuts."""

    def __init__(self) -> None:
        """Make nothing yet."""
        super().__init__()
        self.stack = ExitStack()

    @initialize(drawn=DRAWN)
    def begin(self, drawn: int) -> None:
        """Start with an empty disk."""
        numbers = self.stack.enter_context(tiny())
        self.world = World(drawn, numbers, Hunt(drawn, numbers, PLAN))
        self.world.act("open")

    def act(self, name: str, drawn: int) -> None:
        """Do one act of the world."""
        self.world.rng.seed(drawn)
        self.world.act(name)

    @rule(drawn=DRAWN)
    def append(self, drawn: int) -> None:
        """Append, and acknowledge to the reader."""
        self.act("append", drawn)

    @rule(drawn=DRAWN)
    def write(self, drawn: int) -> None:
        """Write a frame that is not yet synced."""
        self.act("write", drawn)

    @rule(drawn=DRAWN)
    def sync(self, drawn: int) -> None:
        """Sync the written frames."""
        self.act("sync", drawn)

    @rule(drawn=DRAWN)
    def roll(self, drawn: int) -> None:
        """Append to a full segment."""
        self.act("roll", drawn)

    @rule(drawn=DRAWN)
    def reopen(self, drawn: int) -> None:
        """Stop cleanly and start again."""
        self.act("close", drawn)
        self.act("open", drawn)

    @rule(drawn=DRAWN, soon=st.booleans())
    def kill(self, drawn: int, *, soon: bool) -> None:
        """Let the process die, between two acts or in the middle of one."""
        self.act("kill_soon" if soon else "kill", drawn)

    @rule(drawn=DRAWN)
    def power_cut(self, drawn: int) -> None:
        """Let the power fail, during this act or a later one."""
        self.act("power_cut", drawn)

    @rule(drawn=DRAWN)
    def failing_sync(self, drawn: int) -> None:
        """Let a sync fail, which ends the process."""
        self.act("fail_a_sync", drawn)

    @rule(drawn=DRAWN)
    def declare(self, drawn: int) -> None:
        """Run a route for the first time."""
        self.act("declare", drawn)

    @rule(drawn=DRAWN)
    def settle(self, drawn: int) -> None:
        """Deliver a slice of a route."""
        self.act("deliver", drawn)

    @rule(drawn=DRAWN)
    def commit(self, drawn: int) -> None:
        """Sync a route's records."""
        self.act("commit", drawn)

    @rule(drawn=DRAWN)
    def park(self, drawn: int) -> None:
        """Park an entry."""
        self.act("park", drawn)

    @rule(drawn=DRAWN)
    def retry(self, drawn: int) -> None:
        """Deliver parked entries, some of which fail again."""
        self.act("retry", drawn)

    @rule(drawn=DRAWN)
    def replay(self, drawn: int) -> None:
        """Begin a replay, go on with it or end it."""
        self.act("replay", drawn)

    @rule(drawn=DRAWN)
    def skip(self, drawn: int) -> None:
        """Skip an entry."""
        self.act("skip", drawn)

    @rule(drawn=DRAWN)
    def acknowledge(self, drawn: int) -> None:
        """Ack entries that were not delivered."""
        self.act("acknowledge", drawn)

    # Damage at rest and its repair have a machine of their own: test_repair_machine.py.

    @invariant()
    def the_log_is_a_list(self) -> None:
        """Compare the readable entries with the model's list."""
        log, frames = self.world.log, self.world.truth.frames
        if log is None:
            return
        model = {f.first + n: data for f in frames for n, data in enumerate(f.data)}
        synced = {offset: data for offset, data in model.items() if offset <= log.durable}
        with LogReader(LOG, self.world.disk) as reader:
            found = {
                row["offset"]: row["data"]
                for batch in reader.read(0, log.durable)
                for row in batch.select(["offset", "data"]).to_pylist()
            }
        assert found == synced
        assert log.durable >= self.world.truth.must
        positions = {f.reader: f.position for f in frames if f.position is not None}
        assert log.positions == positions

    @invariant()
    def a_route_is_a_set(self) -> None:
        """Compare a route's watermark and ranges with the set of settled entries."""
        for name, route in self.world.routes.items():
            known, state = self.world.truth.routes[name], route.offsets.state
            assert settled_by(state) == known.settled
            store = ParkedStore(route.offsets.folder, self.world.disk)
            there = {offset for offset, kept in known.parked.items() if kept}
            assert there <= set(store.offsets()) <= known.parked.keys()

    def teardown(self) -> None:
        """Stop cleanly, without a loss."""
        with self.stack:
            if hasattr(self, "world"):
                self.world.act("close")


@pytest.mark.timeout(1800)  # enough for --exhaustive on a busy machine
def test_the_log_machine(*, exhaustive: bool) -> None:
    """After any sequence of acts, the log and its routes match the model."""
    examples = 400 if exhaustive else 5
    run_machine(LogMachine, examples=examples, steps=30, exhaustive=exhaustive)
