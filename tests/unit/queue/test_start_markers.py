"""Tests of messages and Starts from records, and of markers from settled messages."""

from __future__ import annotations

from dataclasses import dataclass

from transporter.queue.consumer import to_markers
from transporter.queue.consumer_state import Work
from transporter.queue.markers import End, KeepAlive, Nack, encode_marker
from transporter.queue.start_markers import StartBatch


@dataclass
class Record:
    """A record as the client returns it."""

    place: tuple[int, int]
    name: bytes
    content: bytes | None = b"v"

    def partition(self) -> int:
        return self.place[0]

    def offset(self) -> int:
        return self.place[1]

    def key(self) -> bytes:
        return self.name

    def value(self) -> bytes | None:
        return self.content

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return (1, 12)


def batch(*records: Record) -> StartBatch:
    """Return the batch of queue ``jobs`` from *records*."""
    made = StartBatch("jobs")
    made.add_records(records)
    return made


def test_messages_of_other_queues_are_passed_and_not_begun() -> None:
    """Messages of other queues count as read, but are neither received nor begun."""
    found = batch(Record((0, 5), b"jobs"), Record((0, 6), b"mail"), Record((1, 2), b"mail"))
    assert [message.id for message in found.messages] == [(0, 5)]
    assert found.ends == {0: 7, 1: 3}
    assert found.firsts == {0: 5, 1: 2}
    assert [start.offsets for start in found.start_markers(1, 1000)] == [(5,)]


def test_one_start_announces_all_messages_of_a_partition() -> None:
    """One Start for each partition announces all its messages."""
    found = batch(*(Record((each % 2, each), b"jobs") for each in range(100)))
    starts = list(found.start_markers(30_000, 100_000))
    assert [(start.partition, len(start.offsets)) for start in starts] == [(0, 50), (1, 50)]
    assert {start.after_ms for start in starts} == {30_000}


def test_a_start_is_no_larger_than_the_topic_takes() -> None:
    """Large messages are spread over several Starts, and the largest gets its own."""
    found = batch(*(Record((0, each), b"jobs", b"x" * 400) for each in range(5)))
    starts = list(found.start_markers(1, 1000))
    assert [len(start.offsets) for start in starts] == [2, 2, 1]
    assert max(len(encode_marker(start)) for start in starts) <= 1000
    (alone,) = batch(Record((0, 0), b"jobs", b"x" * 5000)).start_markers(1, 1000)
    assert alone.values == (b"x" * 5000,)


def test_work_becomes_one_marker_for_each_partition_and_kind() -> None:
    """Markers name lists of messages."""
    nack, later = Nack(0, (), 0, "bad"), Nack(0, (), 500)
    work = Work(
        [(0, 1), (1, 2), (0, 3)], [((0, 4), nack), ((0, 5), nack), ((0, 6), later)], [(0, 9)]
    )
    assert list(to_markers(work, 30_000)) == [
        KeepAlive(0, (9,), 30_000),
        End(0, (1, 3)),
        End(1, (2,)),
        Nack(0, (4, 5), 0, "bad"),
        Nack(0, (6,), 500),
    ]


def test_a_marker_names_a_bounded_number_of_messages() -> None:
    """Each marker is small enough for any client, however many messages are settled at once."""
    ids, nack = [(0, each) for each in range(25_000)], Nack(0, (), 0, "x" * 10_000)
    found = list(to_markers(Work(ids, [(each, nack) for each in ids]), 1))
    assert max(len(encode_marker(each)) for each in found) < 1000 + 32 * 1024
    assert sum(len(marker.offsets) for marker in found) == 50_000


class Odd(Record):
    """A record with a header whose name is not UTF-8, as the client returns it."""

    def headers(self) -> None:
        raise SystemError("returned a result with an exception set")


class Long(Record):
    """A record with a header whose name is too long for a Start."""

    def headers(self) -> list[tuple[str, bytes]]:  # type: ignore[override]
        return [("x" * 70_000, b"")]


def test_headers_that_cannot_be_read_hold_up_nobody() -> None:
    """A message with unreadable headers comes without them and is counted."""
    made = batch(Record((0, 1), b"jobs"), Odd((0, 2), b"jobs"), Long((0, 3), b"jobs"))
    assert [(each.id, each.headers) for each in made.messages] == [
        ((0, 1), ()),
        ((0, 2), ()),
        ((0, 3), ()),
    ]
    assert made.unreadable == 2
