"""Records of Kafka as messages: every part, and values that do not fit."""

from __future__ import annotations

import pytest
from confluent_kafka import Message as Record
from transporter_adaptors.kafka.records import EARLIEST, LATEST, Names, to_batch

from transporter.message import MESSAGE_SCHEMA, Message
from transporter.testing.contracts import messages_of

NAMES = {"a": Names("shop.a", "a@id"), "b": Names("shop.b", "b")}


def record(topic: str = "a", **parts: object) -> Record:
    """Return a record as the client gives it."""
    given = {"partition": 0, "offset": 0, "timestamp": (1, 1000), **parts}
    return Record(topic=topic, **given)


def messages(*records: Record) -> list[Message]:
    """Convert *records* to messages."""
    batch = to_batch(records, NAMES, "text/plain")
    batch.validate(full=True)
    assert batch.schema.equals(MESSAGE_SCHEMA)
    return messages_of(batch)


def test_each_part_goes_to_its_column() -> None:
    """Topic, partition and offset make namespace and source id, and the rest is unchanged."""
    headers = [("h", b"1"), ("h", None), ("", b"")]

    (found,) = messages(
        record(partition=3, offset=9, key=b"k", value=b"v", headers=headers, timestamp=(1, 5))
    )

    assert found == Message(
        "shop.a", b"v", b"k", "insert", "sync", 5000, "a@id/3/9", "text/plain", tuple(headers)
    )


def test_rows_keep_their_order_over_topics() -> None:
    """Records of several topics, with headers and without, keep their order."""
    found = messages(
        record("a", offset=1, value=b"1"),
        record("b", partition=1, offset=1, value=b"2", headers=[("x", b"y")]),
        record("a", offset=2, value=b"3", headers=[("p", b""), ("q", None)]),
    )

    assert [each.source_id for each in found] == ["a@id/0/1", "b/1/1", "a@id/0/2"]
    assert [each.namespace for each in found] == ["shop.a", "shop.b", "shop.a"]
    assert [len(each.headers) for each in found] == [0, 1, 2]


def test_no_value_is_a_tombstone_and_an_empty_one_is_not() -> None:
    """Only a null value is a delete."""
    found = messages(record(value=None, key=b"k"), record(value=b"", key=None))

    assert [(each.op, each.data, each.key) for each in found] == [
        ("delete", None, b"k"),
        ("insert", b"", None),
    ]


@pytest.mark.parametrize(("time", "expected"), [(-1, 0), (0, 0), (LATEST, LATEST), (-5, -5)])
def test_a_time_that_a_calendar_has_is_kept(time: int, expected: int) -> None:
    """Milliseconds become microseconds, and a missing time becomes zero."""
    (found,) = messages(record(timestamp=(1, time), value=b""))

    assert (found.timestamp, found.headers) == (expected * 1000, ())


@pytest.mark.parametrize(("time", "nearest"), [(2**63 - 1, LATEST), (-(2**62), EARLIEST)])
def test_a_time_that_no_calendar_has_is_told_in_a_header(time: int, nearest: int) -> None:
    """The message keeps its data, and its time is the nearest that can be written."""
    found = messages(
        record(timestamp=(1, time), value=b"v", headers=[("h", b"1")]), record(value=b"w")
    )

    assert found[0].timestamp == nearest * 1000
    assert found[0].data == b"v"
    assert [name for name, _ in found[0].headers] == ["transporter-error", "h"]
    assert str(time).encode() in (found[0].headers[0][1] or b"")
    assert found[1].headers == ()
