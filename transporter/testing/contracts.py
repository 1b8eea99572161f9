"""Contracts of readers and writers, as pytest mix-ins. Needs pytest.

Derive a class named ``Test…`` from one of them. Its methods make the adaptor and look into the
system behind it.
"""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import pytest

from transporter.accepts import apply_accepts
from transporter.adaptor import EndOfSource, StoredOffset, WriterContext, state_name
from transporter.errors import Rejected, RouteFault, SinkError
from transporter.message import Entries, Message, with_offsets
from transporter.testing.acks import RecordingAck
from transporter.testing.doubles import FixedResume
from transporter.testing.hostile import entries, hostile_messages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transporter.adaptor import Batch, Reader, Writer

CONTEXT = WriterContext(log_id="log-1", route="route", epoch=3, deadline=10.0, run="run-3")


def assert_complete(ack: RecordingAck) -> None:
    """Assert that a writer has acked all entries of a batch, and refused none."""
    text = f"write() must ack each of these entries, and return only then: {ack!r}"
    if any(isinstance(error, Rejected) for error, _ in ack.failures):
        text += "; RefusingWriterContract is for sinks that refuse some entries, not these"
    assert ack.complete, text


class WriterContract:
    """The contract of every writer. The sink must be empty when a test begins."""

    exact: ClassVar[tuple[str, ...]] = ("namespace", "key", "data")
    """Parts of a message that arrive exactly."""

    def make_writer(self) -> Writer:
        """Return a new writer to the sink of this test."""
        raise NotImplementedError

    def delivered(self) -> list[Message]:
        """Return the messages in the sink, in its order, with the parts named by :attr:`exact`."""
        raise NotImplementedError

    def held(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the expected :meth:`delivered` after *messages*: all, unless the sink folds."""
        return messages

    @pytest.fixture
    def writer(self) -> Iterator[Writer]:
        """Yield an open writer, as the engine would use it, and close it."""
        writer: Writer = apply_accepts(self.make_writer())
        try:
            writer.open(CONTEXT)
            yield writer
        finally:
            writer.close()

    def test_hostile_values_arrive_exactly_and_in_order(self, writer: Writer) -> None:
        """Every part that the adaptor claims to keep arrives byte for byte, in order."""
        messages = hostile_messages()

        ack = write(writer, entries(messages))

        assert_complete(ack)
        self.check(messages)

    def test_slices_follow_one_another(self, writer: Writer) -> None:
        """Entries of many slices arrive in the order of their offsets, none twice."""
        messages = numbered(60)

        for first in range(0, 60, 7):
            assert_complete(write(writer, entries(messages[first : first + 7], first + 1)))

        self.check(messages)

    def test_an_empty_batch_changes_nothing(self, writer: Writer) -> None:
        """A batch without entries is settled at once and delivers nothing."""
        assert_complete(write(writer, entries([])))
        assert self.delivered() == []

    def test_a_new_writer_goes_on(self, writer: Writer) -> None:
        """Entries that one writer delivered stay when it is closed and the next one goes on."""
        write(writer, entries(numbered(3)))
        writer.close()
        second = self.make_writer()
        try:
            second.open(CONTEXT)
            assert_complete(write(second, entries(numbered(6)[3:], 4)))
        finally:
            second.close()

        self.check(numbered(6))

    def test_close_needs_no_open(self) -> None:
        """Closing is safe before an open, and twice."""
        writer = self.make_writer()
        writer.close()
        writer.close()

    def check(self, messages: Sequence[Message]) -> None:
        """Compare the contents of the sink with those expected after *messages*."""
        assert self.shown(self.delivered()) == self.shown(self.held(messages))

    def shown(self, messages: Sequence[Message]) -> list[tuple[object, ...]]:
        """Return the parts of *messages* that :attr:`exact` names."""
        return [tuple(getattr(message, part) for part in self.exact) for message in messages]


class RefusingWriterContract(WriterContract):
    """The contract of a writer whose sink refuses some entries for their own sake.

    It may name them by ``ack.fail``, by raising :class:`~transporter.errors.Rejected`, or by its
    ``accepts``.
    """

    def refused_message(self) -> Message:
        """Return a message that the sink refuses."""
        raise NotImplementedError

    def test_a_refused_entry_stops_the_slice(self, writer: Writer) -> None:
        """A refused entry is named, all before it arrives once, and later ones do not arrive.

        Those before it that were not acked are written again, as by the engine.
        """
        good, rest = numbered(5)[:3], numbered(5)[3:]
        batch = entries([*good, self.refused_message(), *rest])
        ack = RecordingAck(batch)

        try:
            writer.write(batch, ack)
        except Rejected as error:
            ack.fail(error, error.offset)

        assert ack.failures, "the writer has accepted refused_message()"
        refusal, offset = ack.failures[0]
        assert isinstance(refusal, Rejected)
        assert (refusal.offset if offset is None else offset) == batch.offsets[len(good)]
        acked = len(ack.prefix)
        assert acked <= len(good)
        assert_complete(write(writer, entries(good[acked:], acked + 1)))
        self.check(good)
        assert_complete(write(writer, entries(rest, batch.offsets[-len(rest)])))


class UnreachableWriterContract(WriterContract):
    """The contract of a writer whose sink cannot always be opened."""

    def make_unreachable(self) -> Writer:
        """Return a writer whose open fails."""
        raise NotImplementedError

    def test_a_failed_open_says_so_and_can_be_closed(self) -> None:
        """A sink that cannot be opened is reported as a sink error, and close is safe."""
        writer = self.make_unreachable()

        with pytest.raises(SinkError):
            writer.open(replace(CONTEXT, deadline=1.0))

        writer.close()


class StoredOffsetContract(WriterContract):
    """The contract of a writer whose sink stores the offset in its own transaction."""

    def test_the_stored_offset_is_that_of_the_last_entry(self, writer: Writer) -> None:
        """A sink that stores the offset returns it at the next open, with the run that wrote it."""
        write(writer, entries(numbered(4), first=7))
        writer.close()

        second = self.make_writer()
        stored = second.open(CONTEXT)
        second.close()

        assert stored == StoredOffset("log-1", "route", 3, 0, 0, 1, 10, "run-3")

    def test_a_retry_leaves_the_stored_offset(self, writer: Writer) -> None:
        """A parked entry that is retried, in a generation below 0, does not move the offset."""
        context, messages = replace(CONTEXT, generation=2), numbered(4)
        write(writer, replace(entries(messages[:3], first=20), generation=2))
        assert_complete(write(writer, replace(entries(messages[3:], first=10), generation=-1)))
        writer.close()

        second = self.make_writer()
        stored = second.open(context)
        second.close()

        assert stored == StoredOffset("log-1", "route", 3, 2, 0, 1, 22, "run-3")

    def test_a_retry_in_a_later_run_leaves_the_run_of_the_offset(self, writer: Writer) -> None:
        """The run that proves a stored offset stays with it when a later run retries an entry."""
        write(writer, entries(numbered(3), first=20))
        writer.close()
        later, second = self.make_writer(), self.make_writer()
        context = replace(CONTEXT, epoch=4, run="run-4")
        try:
            later.open(context)
            write(later, replace(entries(numbered(4)[3:], first=10), generation=-1))
            later.close()
            stored = second.open(context)
        finally:
            later.close()
            second.close()

        assert stored is not None
        assert (stored.offset, stored.run) == (22, "run-3")

    def test_a_retry_alone_claims_nothing(self, writer: Writer) -> None:
        """No generation of the route has an offset if only a parked entry has been written."""
        write(writer, replace(entries(numbered(1), first=10), generation=-1))
        writer.close()

        second = self.make_writer()
        stored = second.open(CONTEXT)
        second.close()

        assert stored is None or stored.generation < 0

    def test_an_older_epoch_is_fenced(self, writer: Writer) -> None:
        """An older epoch cannot write after a newer one has written, and changes nothing.

        ``open`` or ``write`` may refuse it, and either may raise the fault.
        """
        write(writer, entries(numbered(2)))
        self.check_fenced(writer)

    def test_a_retry_fences_too(self, writer: Writer) -> None:
        """An engine that has retried a parked entry, and nothing else, has taken over, too."""
        newer = self.make_writer()
        write(writer, entries(numbered(1)))
        writer.close()
        try:
            newer.open(replace(CONTEXT, epoch=4))
            write(newer, replace(entries(numbered(2)[1:], 2), generation=-1))
        finally:
            newer.close()
        self.check_fenced(writer, epoch=3)

    def check_fenced(self, writer: Writer, epoch: int = 2) -> None:
        """Close *writer*. Check that one of an older *epoch* adds nothing to its two entries."""
        writer.close()
        zombie, batch = self.make_writer(), entries(numbered(4)[2:], 3)
        ack = RecordingAck(batch)
        try:
            zombie.open(replace(CONTEXT, epoch=epoch))
            zombie.write(batch, ack)
        except RouteFault as fault:
            ack.fail(fault)
        finally:
            zombie.close()

        assert ack.prefix == []
        assert isinstance(ack.failures[0][0], RouteFault)
        self.check(numbered(2))


class ReaderContract:
    """The contract of every reader, on a source that ends."""

    exact: ClassVar[tuple[str, ...]] = ("namespace", "key", "data")
    """Parts of a message that the source determines."""

    def make_reader(self) -> Reader:
        """Return a new reader of the source of this test, with several batches to read."""
        raise NotImplementedError

    def expected(self) -> list[Message]:
        """Return all that the source holds, in its order."""
        raise NotImplementedError

    def test_the_source_is_read_to_its_end(self) -> None:
        """Everything in the source is read once and in order, in more than one batch."""
        batches = self.read_all()

        assert len(batches) > 1
        assert self.shown(joined(batches)) == self.shown(self.expected())

    def test_a_restart_goes_on_exactly(self) -> None:
        """From the position of any batch, a new reader reads exactly the messages behind it."""
        batches = self.read_all()

        for done, (_, position) in enumerate(batches, start=1):
            rest = self.read_all(position)
            assert self.shown(joined(rest)) == self.shown(joined(batches[done:]))

    def test_a_commit_forgets_nothing_that_follows(self) -> None:
        """After a position was committed, a new reader still reads all that follows it."""
        reader = self.make_reader()
        reader.open(FixedResume())
        try:
            batch = first_batch(reader, states=self.states)
            assert batch.position is not None
            reader.commit(batch.position)
        finally:
            reader.close()

        rest = joined(self.read_all(batch.position))

        assert self.shown(rest) == self.shown(self.expected()[len(batch.messages) :])

    def test_the_end_stays_the_end(self) -> None:
        """Polling behind the end raises again and does not wait."""
        position = self.read_all()[-1][1]
        reader, resume = self.make_reader(), FixedResume(position)
        resume.states.update(self.states)
        reader.open(resume)
        try:
            for _ in range(2):
                with pytest.raises(EndOfSource):
                    first_batch(reader)
        finally:
            reader.close()

    def test_close_needs_no_open(self) -> None:
        """Closing is safe before an open, and twice."""
        reader = self.make_reader()
        reader.close()
        reader.close()

    @property
    def states(self) -> dict[str, str]:
        """The states that the readers of this test have returned, by name."""
        found: dict[str, str] = self.__dict__.setdefault("_states", {})
        return found

    def read_all(self, position: str | None = None) -> Read:
        """Read with a new reader from *position* to the end."""
        return read_all(self.make_reader(), position, self.states)

    def shown(self, messages: Sequence[Message]) -> list[tuple[object, ...]]:
        """Return the parts of *messages* that :attr:`exact` names."""
        return [tuple(getattr(message, part) for part in self.exact) for message in messages]


Read = list[tuple[list[Message], str | None]]


def numbered(count: int) -> list[Message]:
    """Return *count* messages over five keys, each with its number as data."""
    return [
        Message("orders.placed", b"%d" % number, b"key-%d" % (number % 5), timestamp=1_000_000)
        for number in range(count)
    ]


def write(writer: Writer, batch: Entries) -> RecordingAck:
    """Write *batch*, and return the record of the writer's calls."""
    ack = RecordingAck(batch)
    writer.write(batch, ack)
    return ack


def read_all(
    reader: Reader, position: str | None = None, states: dict[str, str] | None = None
) -> Read:
    """Read from *position* to the end and close. Return each batch with its position.

    The *states* of earlier readers are those that positions name, and new ones are added.
    """
    batches: Read = []
    kept, resume = {} if states is None else states, FixedResume(position)
    resume.states.update(kept)
    try:
        reader.open(resume)
        while True:
            batch = first_batch(reader, states=kept)
            batches.append((messages_of(batch.messages), batch.position))
    except EndOfSource:
        return batches
    finally:
        reader.close()


def first_batch(
    reader: Reader, seconds: float = 20.0, states: dict[str, str] | None = None
) -> Batch:
    """Poll until messages come. States that come with them, or before, are added to *states*."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        batch = reader.poll(0.2)
        if states is not None and batch.state is not None:
            states[state_name(batch.state)] = batch.state
        if len(batch.messages):
            return batch
    raise AssertionError(f"nothing came within {seconds:g} s")


def joined(batches: Read) -> list[Message]:
    """Return the messages of all *batches*."""
    return [message for messages, _ in batches for message in messages]


def messages_of(found: object) -> list[Message]:
    """Return a batch's messages as objects, in whichever form they came."""
    if isinstance(found, list | tuple):
        return list(found)
    return [entry.message for entry in Entries(with_offsets(found, 0, 0))]
