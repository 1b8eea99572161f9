"""The tracker's structures against a simple model, and against themselves after a restart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from transporter.queue.in_progress import InProgress
from transporter.queue.markers import End, KeepAlive, Marker, Nack, Start

OFFSETS = st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True).map(tuple)
PARTITIONS = st.integers(0, 1)
MILLIS = st.integers(0, 5000)
Id = tuple[int, int]


@dataclass(frozen=True)
class Known:
    """The model's data of a message."""

    start: int
    deadline: float
    content: tuple[str, bytes | None, bytes]
    nack: Nack | None = None


class Tracker(RuleBasedStateMachine):
    """Any markers, in any order, at any time, with restarts and failed redeliveries in between."""

    @initialize(slack=st.sampled_from([-1000, 5, 1000]))
    def begin(self, slack: int) -> None:
        """Begin without messages."""
        self.slack = slack
        self.real = InProgress(slack=slack)
        self.real.finish_catching_up()
        self.model: dict[Id, Known] = {}
        self.topic: list[Marker | None] = []
        self.now = 0.0
        self.contents = 0

    def see(self, marker: Marker | None) -> int:
        """Append *marker* to the topic and show it to the tracker."""
        offset = len(self.topic)
        self.topic.append(marker)
        self.real.apply(offset, marker, self.now)
        return offset

    @rule(seconds=st.floats(0, 4))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    @rule(partition=PARTITIONS, offsets=OFFSETS, after=MILLIS)
    def start(self, partition: int, offsets: tuple[int, ...], after: int) -> None:
        """Begin work, perhaps once more."""
        self.contents += 1
        content = ("q", b"%d" % self.contents, b"")
        values, headers = (content[1],) * len(offsets), (b"",) * len(offsets)
        place = self.see(Start("q", partition, offsets, after, values, headers))
        for offset in offsets:
            deadline = self.now + after / 1000
            self.model[partition, offset] = Known(place, deadline, content)

    @rule(partition=PARTITIONS, offsets=OFFSETS, after=MILLIS)
    def keep_alive(self, partition: int, offsets: tuple[int, ...], after: int) -> None:
        """Prolong work, whether or not it was begun."""
        self.see(KeepAlive(partition, offsets, after))
        for each in [(partition, offset) for offset in offsets]:
            if each in self.model and self.model[each].nack is None:
                deadline = self.now + after / 1000
                self.model[each] = replace(self.model[each], deadline=deadline)

    @rule(partition=PARTITIONS, offsets=OFFSETS)
    def end(self, partition: int, offsets: tuple[int, ...]) -> None:
        """End work, whether or not it was begun."""
        self.see(End(partition, offsets))
        for offset in offsets:
            self.model.pop((partition, offset), None)

    @rule(partition=PARTITIONS, offsets=OFFSETS, delay=MILLIS, released=st.booleans())
    def nack(self, partition: int, offsets: tuple[int, ...], delay: int, *, released: bool) -> None:
        """Nack work."""
        nack = Nack(partition, offsets, delay, "because", released)
        self.see(nack)
        for each in [(partition, offset) for offset in offsets]:
            if each in self.model:
                deadline = self.now + delay / 1000
                self.model[each] = replace(self.model[each], deadline=deadline, nack=nack)

    @rule()
    def garbage(self) -> None:
        """Add a record that is not a marker."""
        self.see(None)

    @rule(data=st.data(), most=st.integers(1, 3), fails=st.booleans())
    def redeliver(self, data: st.DataObject, most: int, *, fails: bool) -> None:
        """Redeliver due messages with an End, or fail and leave them for a retry."""
        due = {each for each, known in self.model.items() if known.deadline <= self.now}
        taken = self.real.take_expired(self.now, most)
        ids = {each.id for each in taken}
        assert ids <= due
        assert bool(ids) == bool(due)
        assert len(ids) >= min(most, len(due))
        if fails:
            self.real.retry(ids, self.now + 1)
            for each in ids:
                self.model[each] = replace(self.model[each], deadline=self.now + 1)
            return
        without = {each: known for each, known in self.model.items() if each not in ids}
        assert self.real.low_offset_without(ids) == self.low(without)
        self.real.drop(ids)
        self.model = without
        for partition, offset in ids:
            self.see(End(partition, (offset,)))

    @rule(data=st.data())
    def restate(self, data: st.DataObject) -> None:
        """Write a Start again, with the Nack that followed it."""
        if not self.model:
            return
        each = data.draw(st.sampled_from(sorted(self.model)))
        known = self.model[each]
        (partition, offset), (queue, value, headers) = each, known.content
        place = self.see(
            Start(queue, partition, (offset,), 1000, (value,), (headers,), restated=True)
        )
        if known.nack is not None:
            again = replace(known.nack, partition=partition, offsets=(offset,), delay_ms=500)
            self.see(again)
            known = replace(known, nack=again, deadline=self.now + 0.5)
        self.model[each] = replace(known, start=place)

    @rule(partition=PARTITIONS, offsets=OFFSETS)
    def restate_late(self, partition: int, offsets: tuple[int, ...]) -> None:
        """Write Starts again whose End came before, and that End once more."""
        low = self.real.low_offset
        self.end(partition, offsets)
        for offset in offsets:
            self.see(Start("q", partition, (offset,), 1000, (b"late",), (b"",), restated=True))
        taking_over = self.fresh_from(low)
        ids = {(partition, offset) for offset in offsets}
        assert taking_over.ends_to_repeat == self.real.ends_to_repeat == ids
        assert self.contents_of(taking_over) == self.contents_of(self.real)
        self.see(End(partition, offsets))
        assert not self.real.ends_to_repeat

    @rule()
    def restart(self) -> None:
        """Compare with another tracker that reads the topic from the committed offset."""
        fresh = self.fresh_from(self.real.low_offset)
        assert self.contents_of(fresh) == self.contents_of(self.real)
        self.real = fresh
        # Deadlines start again: adopt those of the new tracker for the model.
        self.model = {
            each.id: replace(self.model[each.id], deadline=each.message.deadline) for each in fresh
        }
        assert all(known.deadline >= self.now for known in self.model.values())

    def fresh_from(self, low: int) -> InProgress:
        """Return the state of another tracker that has read the topic from offset *low*."""
        fresh = InProgress(low, slack=self.slack)
        for offset, marker in enumerate(self.topic[low:], start=low):
            fresh.apply(offset, marker, self.now)
        fresh.finish_catching_up()
        return fresh

    @staticmethod
    def contents_of(progress: InProgress) -> dict[Id, Any]:
        """Return the messages that *progress* would redeliver, with their reasons."""
        return {
            each.id: (
                each.message.queue,
                each.message.value,
                each.message.headers,
                each.message.start,
                each.message.nack and (each.message.nack.reason, each.message.nack.released),
            )
            for each in progress
        }

    def low(self, model: dict[Id, Known]) -> int:
        """Return the offset to commit."""
        return min((known.start for known in model.values()), default=len(self.topic))

    @invariant()
    def both_agree(self) -> None:
        """Check that tracker and model have the same messages and would commit the same."""
        if not hasattr(self, "real"):
            return
        assert {each.id for each in self.real} == set(self.model)
        for each in self.real:
            known = self.model[each.id]
            held = each.message
            assert (held.start, held.deadline) == (known.start, known.deadline)
            assert (held.queue, held.value, held.headers) == known.content
            assert (held.nack is None) == (known.nack is None)
        assert self.real.low_offset == self.low(self.model)
        due = any(known.deadline <= self.now for known in self.model.values())
        assert self.real.has_due(self.now) == due
        if self.model:
            deadline = self.real.next_deadline
            assert deadline is not None
            assert deadline <= min(known.deadline for known in self.model.values())


TestTracker = Tracker.TestCase
TestTracker.settings = settings(max_examples=150, stateful_step_count=40)
