"""Tests of the delivery of one slice in process: its settled entries, and its failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transporter.errors import (
    ConfigError,
    Rejected,
    RouteFault,
    SinkError,
    SinkTimeout,
    SinkUnavailable,
)
from transporter.message import (
    ENTRY_SCHEMA,
    ERROR_HEADER,
    Message,
    messages_to_batch,
    position_message,
    with_offsets,
)
from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.pipeline.steps.chain import Steps
from transporter.protocol.messages import Failure, FailureKind, Outcome
from transporter.testing import ListWriter
from transporter.testing.doubles import ListWriterConfig
from transporter.worker.delivery import (
    PART_ROWS,
    PART_SECONDS,
    Acks,
    Delivery,
    Reporter,
    deliver,
    deliver_singly,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transporter.adaptor import Ack, Entries

ALL = Delivery(NamespaceFilter(), "log")


def entries(*messages: Message | str, first: int = 10) -> pa.RecordBatch:
    """Return messages as logged entries. A text becomes a message's namespace and data."""
    made = [
        Message(message, message.encode()) if isinstance(message, str) else message
        for message in messages
    ]
    return with_offsets(messages_to_batch(made), first, 0)


def writer(**failures: tuple[str, ...]) -> ListWriter:
    """Return a writer that fails as given: ``at_12=("rejected",)``."""
    script = {int(name.removeprefix("at_")): kinds for name, kinds in failures.items()}
    return ListWriter(ListWriterConfig(failures=script))


class Calling:
    """A writer that calls a function of the test."""

    def __init__(self, act: Callable[[Entries, Ack], None]) -> None:
        self.write = act


def outcome_of(act: Callable[[Entries, Ack], None], batch: pa.RecordBatch) -> Outcome:
    """Deliver *batch*, which begins at offset 10, with a writer that calls *act*."""
    return deliver(batch, 9 + batch.num_rows, 0, ALL, Calling(act))


def test_a_slice_that_is_delivered_is_settled_to_its_end() -> None:
    """All entries arrive in order, and the outcome counts them and their bytes."""
    sink = writer()
    outcome = deliver(entries("aa", "b", "aa"), 12, 3, ALL, sink)
    assert outcome == Outcome(12, 3, 0, 5, {"aa": 12, "b": 11})
    assert [entry.offset for entry in sink.entries] == [10, 11, 12]


def test_a_writer_is_told_generation_and_log() -> None:
    """A writer can recognise a replay, and make the id that every redelivery repeats."""
    seen: list[tuple[int, str]] = []

    def act(batch: Entries, ack: Ack) -> None:
        seen.append((batch.generation, batch.entry_id(11)))
        ack.all()

    deliver(entries("a", "b"), 11, 4, ALL, Calling(act))
    assert seen == [(4, "log/11")]


def test_what_the_filter_leaves_out_is_skipped() -> None:
    """Entries of other namespaces are settled without being delivered."""
    sink = writer()
    route = Delivery(NamespaceFilter("^a"), "log")
    outcome = deliver(entries("b", "a", "b", "a", "b"), 14, 0, route, sink)
    assert (outcome.through, outcome.delivered, outcome.skipped) == (14, 2, 3)
    assert outcome.namespaces == {"a": 13, "b": 14}
    assert [entry.offset for entry in sink.entries] == [11, 13]


def test_a_slice_of_which_nothing_is_accepted_does_not_reach_the_writer() -> None:
    """A route whose filter accepts nothing settles the slice without a call to its sink."""

    def act(batch: Entries, ack: Ack) -> None:
        raise AssertionError

    outcome = deliver(
        entries("b", "b"), 11, 0, Delivery(NamespaceFilter("^a"), "log"), Calling(act)
    )
    assert (outcome.through, outcome.delivered, outcome.skipped) == (11, 0, 2)
    assert outcome.failure is None


@pytest.mark.parametrize("deliver_slice", [deliver, deliver_singly])
def test_a_noop_is_settled_and_reaches_no_writer(deliver_slice: Callable[..., Outcome]) -> None:
    """An entry that only carries a position goes to neither steps nor writer."""
    batch, sink = entries("a", position_message("in"), "a"), writer()
    seen = []

    class Watching(Steps):
        def apply_before_failure(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, None]:
            seen.extend(batch.column("op").to_pylist())
            return batch, None

    route = Delivery(NamespaceFilter(), "log", Watching())
    found = (
        deliver_slice(batch, 12, 0, route, sink)
        if deliver_slice is deliver
        else deliver_slice(batch, (10, 12, 0), route, sink, lambda _: None)
    )
    assert (found.through, found.delivered, found.skipped) == (12, 2, 1)
    assert [entry.offset for entry in sink.entries] == [10, 12]
    assert set(seen) == {"insert"}


def test_a_step_drops_an_entry_by_making_it_a_noop() -> None:
    """What a step turns into a noop is skipped."""

    class Emptying(Steps):
        def apply_before_failure(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, None]:
            ops = pa.array(["noop"] * batch.num_rows, pa.string())
            return batch.set_column(batch.schema.get_field_index("op"), "op", ops), None

    sink = writer()
    outcome = deliver(
        entries("a", "b"), 11, 0, Delivery(NamespaceFilter(), "log", Emptying()), sink
    )
    assert (outcome.through, outcome.delivered, outcome.skipped) == (11, 0, 2)
    assert sink.entries == []


def test_a_slice_that_holds_no_entry_is_settled() -> None:
    """A slice in a gap of the offsets is settled."""
    empty = pa.RecordBatch.from_pylist([], schema=ENTRY_SCHEMA)
    assert deliver(empty, 11, 0, ALL, writer()) == Outcome(11, 0, 0, 0, {})


def test_a_refused_entry_ends_the_settled_prefix() -> None:
    """Invariant 9: the settled prefix ends before the refused entry, skipped ones included."""
    route = Delivery(NamespaceFilter("^a"), "log")
    batch = entries("a", "b", "a", "b", "a", "b", "a")
    outcome = deliver(batch, 16, 0, route, writer(at_14=("rejected",)))
    assert (outcome.through, outcome.delivered, outcome.skipped) == (13, 2, 2)
    assert outcome.failure == Failure(FailureKind.REJECTED, "offset 14 fails as scripted", 14)
    assert outcome.namespaces == {"a": 12, "b": 13}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("unavailable", FailureKind.UNAVAILABLE),
        ("timeout", FailureKind.TIMEOUT),
        ("fault", FailureKind.FAULT),
        ("unnamed", FailureKind.REJECTED),
    ],
)
def test_a_failure_without_an_offset_keeps_what_was_acked(name: str, kind: FailureKind) -> None:
    """The acked prefix counts, and the failure has its kind but no offset."""
    outcome = deliver(entries("a", "b", "c"), 12, 0, ALL, writer(at_12=(name,)))
    assert outcome.through == 11
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.offset) == (kind, None)


def test_what_was_acked_behind_a_failure_does_not_count() -> None:
    """Invariant 9: an ack beyond the first failure is redelivered rather than overtaken."""

    def act(batch: Entries, ack: Ack) -> None:
        ack([10, 12, 13])
        ack.fail(Rejected("no"), 11)

    outcome = outcome_of(act, entries("a", "b", "c", "d"))
    assert (outcome.through, outcome.delivered) == (10, 1)
    assert outcome.failure is not None
    assert outcome.failure.offset == 11


@pytest.mark.parametrize("order", [(11, 13), (13, 11)])
def test_of_several_failures_the_first_offset_counts(order: tuple[int, int]) -> None:
    """The failure with the lowest offset counts, in any order of the reports."""

    def act(batch: Entries, ack: Ack) -> None:
        ack.all()
        for offset in order:
            ack.fail(Rejected(f"not {offset}"), offset)

    outcome = outcome_of(act, entries("a", "b", "c", "d"))
    assert outcome.through == 10
    assert outcome.failure == Failure(FailureKind.REJECTED, "not 11", 11)


def test_an_entry_that_is_neither_acked_nor_failed_counts_as_failed() -> None:
    """An entry that a writer neither acks nor fails is named by its offset."""
    outcome = outcome_of(lambda _, ack: ack([10, 12]), entries("a", "b", "c"))
    assert outcome.through == 10
    assert outcome.failure is not None
    assert "without acking or failing offset 11" in outcome.failure.text


def test_a_writer_that_raises_loses_nothing_that_it_acked() -> None:
    """An exception is the route's failure, and entries acked before it stay acked."""

    def act(batch: Entries, ack: Ack) -> None:
        ack([10])
        raise ZeroDivisionError("oops")

    outcome = outcome_of(act, entries("a", "b"))
    assert outcome.through == 10
    assert outcome.failure == Failure(FailureKind.REJECTED, "ZeroDivisionError: oops")


def test_a_writer_that_raises_at_once_settles_nothing() -> None:
    """Without an ack nothing is settled, not even a skipped entry."""

    def act(batch: Entries, ack: Ack) -> None:
        raise SinkUnavailable("down")

    outcome = outcome_of(act, entries("a", "b"))
    assert outcome == Outcome(9, 0, 0, 0, {}, Failure(FailureKind.UNAVAILABLE, "down"))


def test_skipped_entries_before_the_first_failure_are_settled() -> None:
    """A failing first delivery does not block the entries skipped before it."""
    route = Delivery(NamespaceFilter("^a"), "log")
    outcome = deliver(entries("b", "b", "a", "b"), 13, 0, route, writer(at_12=("rejected",)))
    assert (outcome.through, outcome.delivered, outcome.skipped) == (11, 0, 2)


def poison(text: bytes | None) -> Message:
    """Return a record that a reader has marked as unreadable."""
    return Message("a", b"raw", headers=(("x", b"1"), (ERROR_HEADER, text)))


def test_a_record_that_its_reader_could_not_read_stops_the_route_there() -> None:
    """The entries before an unreadable record are delivered, but the record is not."""
    sink = writer()
    batch = entries("a", "b", poison(b"unequal arrays"), "c", poison(b"later"))
    outcome = deliver(batch, 14, 0, ALL, sink)
    assert (outcome.through, outcome.delivered) == (11, 2)
    assert outcome.failure == Failure(
        FailureKind.POISON, "its reader could not read it: unequal arrays", 12
    )
    assert [entry.offset for entry in sink.entries] == [10, 11]


def test_such_a_record_first_of_all_leaves_the_writer_alone() -> None:
    """A slice that begins with an unreadable record delivers nothing."""
    sink = writer()
    outcome = deliver(entries(poison(None), "a"), 11, 0, ALL, sink)
    assert (outcome.through, outcome.delivered, sink.entries) == (9, 0, [])
    assert outcome.failure is not None
    assert outcome.failure.offset == 10


def test_such_a_record_of_another_namespace_is_skipped() -> None:
    """Only a route whose filter accepts an unreadable record stops at it."""
    outcome = deliver(
        entries("b", poison(b"bad"), "b"), 12, 0, Delivery(NamespaceFilter("^b"), "log"), writer()
    )
    assert (outcome.through, outcome.delivered, outcome.skipped) == (12, 2, 1)


def test_a_failure_before_such_a_record_comes_first() -> None:
    """The route stops at the problem with the lower offset."""
    outcome = deliver(entries("a", poison(b"bad")), 11, 0, ALL, writer(at_10=("rejected",)))
    assert outcome.failure is not None
    assert outcome.failure.offset == 10


def test_an_ack_of_everything_needs_no_offsets() -> None:
    """``ack.all()`` settles the whole batch."""
    acks = Acks([4, 5, 9])
    acks.all()
    assert acks.result() == (3, None)


def test_acks_come_in_any_order() -> None:
    """Acks count in any order."""
    acks = Acks([4, 5, 9])
    acks([9])
    acks(iter([5, 4]))
    assert acks.result() == (3, None)


@pytest.mark.parametrize(
    ("acked", "count"),
    [([], 0), ([4], 0), ([4, 4], 2), ([4, 4, 5], 3), ([4, 4, 5, 6], 3), ([4, 4, 5, 6, 6], 5)],
)
def test_an_entry_of_several_outputs_needs_an_ack_for_each(acked: list[int], count: int) -> None:
    """An entry is not delivered when a writer that acks rows fails within its outputs."""
    acks = Acks([4, 4, 5, 6, 6])
    for offset in acked:
        acks([offset])
    acks.record(Failure(FailureKind.UNAVAILABLE, "gone"))
    found, failure = acks.result()
    assert (found, failure is None) == (count, count == 5)


def test_one_ack_for_an_entry_of_several_outputs_will_do_when_what_follows_is_acked() -> None:
    """Entries acked once each, and not per row, are delivered up to the last ack."""
    acks = Acks([4, 4, 5, 6, 6])
    acks([4, 5, 6])
    assert acks.result() == (5, None)
    acks = Acks([4, 4, 5, 6, 6])
    acks([4, 5])
    acks.record(Failure(FailureKind.UNAVAILABLE, "gone"))
    assert acks.result()[0] == 3


def test_a_named_failure_gives_way_to_no_unnamed_one() -> None:
    """A later unnamed failure does not hide an entry that the sink has named."""
    acks = Acks([4, 5])
    acks.fail(Rejected("this one"), 5)
    acks.fail(SinkUnavailable("then it went down"))
    acks([4])
    assert acks.result() == (1, Failure(FailureKind.REJECTED, "this one", 5))


@pytest.mark.parametrize(
    ("error", "kind", "offset"),
    [
        (SinkUnavailable("x"), FailureKind.UNAVAILABLE, None),
        (SinkTimeout("x"), FailureKind.TIMEOUT, None),
        (RouteFault("x"), FailureKind.FAULT, None),
        (SinkError("x"), FailureKind.FAULT, None),
        (ConfigError("x"), FailureKind.FAULT, None),
        (Rejected("x", 7), FailureKind.REJECTED, 7),
        (Rejected("x"), FailureKind.REJECTED, None),
        (ValueError("x"), FailureKind.REJECTED, None),
    ],
)
def test_failures_are_classified(error: Exception, kind: FailureKind, offset: int | None) -> None:
    """A writer's exception decides on a retry, a stop of the route, or a refused entry."""
    failure = Failure.of(error)
    assert (failure.kind, failure.offset) == (kind, offset)
    assert failure.kind.retriable == (kind in (FailureKind.UNAVAILABLE, FailureKind.TIMEOUT))


def test_an_offset_told_beside_an_error_wins_over_that_in_it() -> None:
    """The offset that the writer passes to ``fail`` takes precedence."""
    assert Failure.of(Rejected("x", 7), 8).offset == 8


# --- parts of a slice, reported before its end


class Clock:
    """A clock that only the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Parts:
    """The reports of a delivery before it ends."""

    def __init__(self) -> None:
        self.clock, self.told = Clock(), list[Outcome]()
        self.reporter = Reporter(self.told.append, self.clock)

    def later(self) -> None:
        """Let enough time pass for a report."""
        self.clock.now += PART_SECONDS


def acking(parts: Parts, *acked: list[int], then: SinkError | None = None) -> Calling:
    """Return a writer that waits before each of these acks, and may fail after them."""

    def act(batch: Entries, ack: Ack) -> None:
        for offsets in acked:
            parts.later()
            ack(offsets)
        if then is not None:
            ack.fail(then, getattr(then, "offset", None))

    return Calling(act)


def part_of(rows: int) -> Outcome:
    """Return a part of *rows* rows."""
    return Outcome(0, rows, 0, 0, {})


def summed(outcomes: list[Outcome]) -> Outcome:
    """Return the outcome of the whole slice with these parts."""
    last = outcomes[-1]
    namespaces = {name: offset for each in outcomes for name, offset in each.namespaces.items()}
    delivered = sum(each.delivered for each in outcomes)
    skipped = sum(each.skipped for each in outcomes)
    size = sum(each.size for each in outcomes)
    return Outcome(last.through, delivered, skipped, size, namespaces, last.failure)


def test_what_is_acked_of_a_slice_is_reported_before_its_end() -> None:
    """Each report ends before the next unacked entry, and includes filtered ones."""
    route = Delivery(NamespaceFilter("^a"), "log")
    batch = entries("b", "a", "b", "b", "aa", "a", "b")
    parts = Parts()
    sink = acking(parts, [11], [14], [15])
    rest = deliver(batch, 16, 0, route, sink, parts.reporter)
    assert parts.told == [
        Outcome(13, 1, 3, 1, {"a": 11, "b": 13}),
        Outcome(14, 1, 0, 2, {"aa": 14}),
    ]
    assert rest == Outcome(16, 1, 1, 1, {"a": 15, "b": 16})
    assert summed([*parts.told, rest]) == deliver(batch, 16, 0, route, writer())


def test_a_slice_that_is_acked_as_a_whole_has_no_parts() -> None:
    """A slice that is acked as a whole is reported only by its outcome."""
    parts = Parts()
    for act in (lambda _, ack: ack.all(), lambda batch, ack: ack(batch.offsets)):
        parts.later()
        assert deliver(entries("a", "b"), 11, 0, ALL, Calling(act), parts.reporter).delivered == 2
    assert parts.told == []


def test_a_quick_slice_has_a_part_each_so_many_rows() -> None:
    """Before the time of a report, only a full count of acked rows causes one."""
    parts, count = Parts(), 2 * PART_ROWS + 10
    batch = entries(*["a"] * count, first=0)

    def act(batch: Entries, ack: Ack) -> None:
        for offset in batch.offsets:
            ack([offset])

    rest = deliver(batch, count - 1, 0, ALL, Calling(act), parts.reporter)
    throughs = [each.through for each in [*parts.told, rest]]
    assert throughs == [PART_ROWS - 1, 2 * PART_ROWS - 1, count - 1]


def test_nothing_is_reported_behind_an_entry_that_is_not_acked() -> None:
    """Invariant 5: only the contiguous prefix is settled, in any order of the acks."""
    parts = Parts()
    sink = acking(parts, [12], [13, 11], [10], [14])
    deliver(entries(*"abcdef"), 15, 0, ALL, sink, parts.reporter)
    assert [each.through for each in parts.told] == [13, 14]


def test_nothing_is_reported_after_a_failure() -> None:
    """Invariant 9: an entry acked behind a failed one is not settled."""
    parts = Parts()

    def act(batch: Entries, ack: Ack) -> None:
        parts.later()
        ack([10])
        ack.fail(Rejected("no"), 11)
        parts.later()
        ack([11, 12])

    outcome = deliver(entries(*"abcd"), 13, 0, ALL, Calling(act), parts.reporter)
    assert [each.through for each in parts.told] == [10]
    assert (outcome.through, outcome.delivered) == (10, 0)
    assert outcome.failure == Failure(FailureKind.REJECTED, "no", 11)


def test_a_failure_of_an_entry_that_was_reported_names_none() -> None:
    """A failure of an acked entry cannot move the watermark back (Invariant 5)."""
    parts = Parts()
    sink = acking(parts, [10, 11], then=Rejected("no", 10))
    outcome = deliver(entries(*"abcd"), 13, 0, ALL, sink, parts.reporter)
    assert [each.through for each in parts.told] == [11]
    assert outcome.through == 11
    assert outcome.failure == Failure(FailureKind.REJECTED, "no", None)


def test_an_entry_is_reported_when_all_its_outputs_are_acked() -> None:
    """An entry with several outputs is reported only when all of them are acked."""
    parts = Parts()
    acks = Acks([4, 4, 4, 5, 6, 6, 7], parts.reporter, part_of)
    for offsets in ([4], [4], [4], [5, 6], [6], [7]):
        parts.later()
        acks(offsets)
    assert [each.delivered for each in parts.told] == [3, 4, 6]
    assert acks.result() == (7, None)


def test_a_writer_that_acks_entries_has_their_outputs_reported_with_the_next() -> None:
    """One ack for an entry of several outputs counts only when a later entry is acked."""
    parts = Parts()
    acks = Acks([4, 4, 5, 6, 6, 7], parts.reporter, part_of)
    for offsets in ([4], [5], [6], [7]):
        parts.later()
        acks(offsets)
    assert [each.delivered for each in parts.told] == [3]
    assert acks.result() == (6, None)


@given(st.data())
def test_acks_count_alike_in_parts(data: st.DataObject) -> None:
    """The reports are a prefix of the final count, for any order of acks."""
    outputs = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=8))
    offsets = [4 + index for index, count in enumerate(outputs) for _ in range(count)]
    order = data.draw(st.permutations(offsets))
    acked = order[: data.draw(st.integers(0, len(order)))] if data.draw(st.booleans()) else offsets
    parts = Parts()
    acks, whole = Acks(offsets, parts.reporter, part_of), Acks(offsets)
    rest = list(acked)
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        parts.later()
        acks(rest[:size])
        rest = rest[size:]
    whole(acked)
    for each in (acks, whole):
        each.record(Failure(FailureKind.UNAVAILABLE, "gone"))
    count, _ = acks.result()
    assert count == whole.result()[0] == _prefix(offsets, acked)
    told = [each.delivered for each in parts.told]
    assert told == sorted(set(told))
    assert all(rows <= count for rows in told)


def _prefix(offsets: list[int], acked: Sequence[int]) -> int:
    """Return the rows of the acked prefix, by a slow and simple way."""
    rows = 0
    while rows < len(offsets) and offsets[rows] in acked:
        rows += 1
    if rows:
        outputs = offsets.count(offsets[rows - 1])
        rows -= outputs if acked.count(offsets[rows - 1]) < outputs else 0
    return rows


def test_entries_delivered_one_at_a_time_are_reported_too() -> None:
    """Entries delivered one at a time are reported in parts, too."""
    parts = Parts()
    sink = writer(at_14=("rejected",))
    outcome = deliver_singly(
        entries(*"abcdefg"),
        (10, 16, 0),
        Delivery(NamespaceFilter("[^b]"), "log"),
        sink,
        lambda offset: parts.later() if offset in {12, 14} else None,
        parts.reporter,
    )
    assert parts.told == [Outcome(12, 2, 1, 2, {"a": 10, "b": 11, "c": 12})]
    assert (outcome.through, outcome.delivered, outcome.namespaces) == (13, 1, {"d": 13})
    assert outcome.failure is not None
    assert outcome.failure.offset == 14
