"""The contracts fail for adaptors that break them, and the doubles follow their scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from transporter.accepts import apply_accepts
from transporter.errors import Rejected, RouteFault, SinkError, SinkTimeout, SinkUnavailable
from transporter.message import Message
from transporter.testing import FixedResume, ListReader, ListWriter, RecordingAck, entries
from transporter.testing.contracts import CONTEXT, ReaderContract, RefusingWriterContract, numbered

if TYPE_CHECKING:
    from transporter.adaptor import Ack, Batch, Entries


class GreedyWriter(ListWriter):
    """A writer that acks everything, even after a failure."""

    def write(self, batch: Entries, ack: Ack) -> None:
        super().write(batch, RecordingAck(batch))
        ack.all()


class HastyWriter(ListWriter):
    """A writer that goes on behind a failure."""

    def write(self, batch: Entries, ack: Ack) -> None:
        for entry in batch:
            if entry.offset == 4:
                ack.fail(Rejected("no", 4), 4)
            else:
                self.entries.append(entry)
                ack([entry.offset])


class ForgivingWriter(ListWriter):
    """A writer that names no entry, so that none can be parked."""

    def write(self, batch: Entries, ack: Ack) -> None:
        raise Rejected("one of these is not good")


class LeakingWriter(ListWriter):
    """A writer that names the refused entry, and keeps entries that it has not acked."""

    def write(self, batch: Entries, ack: Ack) -> None:
        for entry in batch:
            if entry.message.data == b"refused":
                raise Rejected("no", entry.offset)
            self.entries.append(entry)
        ack.all()


class RaisingWriter(ListWriter):
    """A writer that acks as it goes, and raises for the refused entry."""

    def write(self, batch: Entries, ack: Ack) -> None:
        for entry in batch:
            if entry.message.data == b"refused":
                raise Rejected("no", entry.offset)
            self.entries.append(entry)
            ack([entry.offset])


class RollingBackWriter(ListWriter):
    """A writer that keeps all of a batch or nothing, and names the entry by the argument alone."""

    def write(self, batch: Entries, ack: Ack) -> None:
        for entry in batch:
            if entry.message.data == b"refused":
                ack.fail(Rejected("no"), entry.offset)
                return
        self.entries += list(batch)
        ack.all()


class ChoosyWriter(ListWriter):
    """A writer whose hook refuses one message, and which writes any other."""

    def accepts(self, message: Message) -> bool:
        return message.data != b"refused"


class CarelessWriter(ListWriter):
    """A writer that loses the difference between no data and empty data."""

    def write(self, batch: Entries, ack: Ack) -> None:
        changed = [
            Message(e.message.namespace, e.message.data or b"", e.message.key) for e in batch
        ]
        self.entries += list(entries(changed, batch.offsets[0] if len(batch) else 1))
        ack.all()


class Refusing(RefusingWriterContract):
    """The contract over one writer, run by hand."""

    def __init__(self, writer: ListWriter) -> None:
        writer.open(CONTEXT)
        self.writer_of_this_test = writer

    def refused_message(self) -> Message:
        return Message("orders", b"refused")

    def delivered(self) -> list[Message]:
        return [entry.message for entry in self.writer_of_this_test.entries]


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (GreedyWriter, "test_a_refused_entry_stops_the_slice"),
        (HastyWriter, "test_a_refused_entry_stops_the_slice"),
        (ForgivingWriter, "test_a_refused_entry_stops_the_slice"),
        (LeakingWriter, "test_a_refused_entry_stops_the_slice"),
        (CarelessWriter, "test_hostile_values_arrive_exactly_and_in_order"),
    ],
)
def test_a_broken_writer_is_found(broken: type[ListWriter], test: str) -> None:
    """The contract fails for each broken writer, and not for a good one."""
    config = ListWriter.Config(failures={4: ("rejected",)} if "refused" in test else {})

    for kind, good in ((broken, False), (ListWriter, True)):
        contract = Refusing(kind(config))
        run = getattr(contract, test)
        if good:
            run(contract.writer_of_this_test)
        else:
            with pytest.raises((AssertionError, IndexError)):
                run(contract.writer_of_this_test)


@pytest.mark.parametrize("kind", [RaisingWriter, RollingBackWriter, ChoosyWriter])
def test_a_writer_may_refuse_in_any_form(kind: type[ListWriter]) -> None:
    """The contract accepts a refusal by an exception, by an offset alone, or by the hook."""
    contract = Refusing(kind(ListWriter.Config()))
    contract.test_a_refused_entry_stops_the_slice(apply_accepts(contract.writer_of_this_test))


class ForgetfulReader(ListReader):
    """A reader that always starts from the beginning."""

    def open(self, resume: object) -> None:
        super().open(FixedResume(None))


class LossyReader(ListReader):
    """A reader that skips a message after each batch."""

    def poll(self, timeout: float) -> Batch:
        batch = super().poll(timeout)
        self._next += 1
        return batch


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (ForgetfulReader, "test_a_restart_goes_on_exactly"),
        (LossyReader, "test_the_source_is_read_to_its_end"),
    ],
)
def test_a_broken_reader_is_found(broken: type[ListReader], test: str) -> None:
    """The contract fails for a reader that repeats or loses messages after a restart."""

    class Contract(ReaderContract):
        def make_reader(self) -> ListReader:
            return broken(ListReader.Config(data=[f"{n}" for n in range(9)], rows=2))

        def expected(self) -> list[Message]:
            return [Message("list", b"%d" % n) for n in range(9)]

    with pytest.raises(AssertionError):
        getattr(Contract(), test)()


@pytest.mark.parametrize(
    ("name", "error", "named"),
    [
        ("rejected", Rejected, 3),
        ("unnamed", Rejected, None),
        ("unavailable", SinkUnavailable, None),
        ("timeout", SinkTimeout, None),
        ("fault", RouteFault, None),
    ],
)
def test_a_list_writer_fails_as_scripted(
    name: str, error: type[SinkError], named: int | None
) -> None:
    """Each scripted failure stops the batch once, with its class, and then the entry succeeds."""
    writer = ListWriter(ListWriter.Config.model_validate({"failures": {3: (name, name)}}))
    batch = entries(numbered(4))
    acks = [RecordingAck(batch) for _ in range(3)]
    for ack in acks:
        writer.write(batch, ack)

    for ack in acks[:2]:
        assert ack.prefix == [1, 2]
        ((found, offset),) = ack.failures
        assert type(found) is error
        assert offset == named
    assert acks[2].complete
    assert [entry.offset for entry in writer.entries] == [1, 2, 1, 2, 1, 2, 3, 4]


def test_a_list_reader_has_the_namespace_it_is_given() -> None:
    """The data, namespace and rows settings decide what a list reader returns."""
    reader = ListReader(ListReader.Config(data=["1", "2", "3"], namespace="n", rows=2))
    reader.open(FixedResume("1"))

    batch = reader.poll(0.0)
    reader.commit("3")

    assert list(batch.messages) == [Message("n", b"2"), Message("n", b"3")]
    assert batch.position == "3"
    assert reader.committed == ["3"]


def test_an_ack_counts_only_the_prefix() -> None:
    """Acks behind a failed or an unacked entry do not count, and unknown offsets are an error."""
    batch = entries(numbered(5))
    gap, failed = RecordingAck(batch), RecordingAck(batch)
    gap([1, 2, 4, 5])
    failed.all()
    failed.fail(Rejected("no", 3), 3)

    assert gap.prefix == failed.prefix == [1, 2]
    assert not gap.complete
    assert not failed.complete
    with pytest.raises(ValueError, match="not in the batch"):
        gap([6])
