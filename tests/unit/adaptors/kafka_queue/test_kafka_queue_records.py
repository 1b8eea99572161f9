"""Messages of a queue as log messages, and entries as messages of a queue."""

from __future__ import annotations

from transporter_adaptors.kafka.records import EARLIEST, LATEST
from transporter_adaptors.kafka_queue.records import to_message, to_outgoing

from transporter.message import ERROR_HEADER, Message
from transporter.queue import Outgoing, QueueMessage
from transporter.testing import entries


def test_a_message_keeps_what_it_has() -> None:
    """Value, key, headers and time are the message's, and the source id is its place."""
    found = QueueMessage((3, 17), "jobs", b"v", b"k", (("a", None),), sent=1_700_000_000_123)
    assert to_message(found, "queue", "shop.jobs", "text/plain") == Message(
        "shop.jobs",
        b"v",
        b"k",
        timestamp=1_700_000_000_123_000,
        source_id="queue/3/17",
        content_type="text/plain",
        headers=(("a", None),),
    )


def test_no_value_is_a_tombstone() -> None:
    """A message without a value is a tombstone, and one with an empty value is not."""
    assert to_message(QueueMessage((0, 1), "jobs", None), "q", "n", None).op == "delete"
    assert to_message(QueueMessage((0, 1), "jobs", b""), "q", "n", None).op == "insert"


def test_a_redelivered_message_is_the_one_that_was_first_sent() -> None:
    """A redelivery keeps its source id, and a header in front counts the redeliveries."""
    found = QueueMessage(
        (0, 99), "jobs", b"v", headers=(("a", b"1"),), redeliveries=2, origin=(3, 17), sent=5
    )
    message = to_message(found, "queue", "n", None)
    assert message.source_id == "queue/3/17"
    assert message.headers == (("transporter-redeliveries", b"2"), ("a", b"1"))


def test_a_time_that_no_calendar_has_is_told_in_a_header() -> None:
    """A time out of range adds an error header, and a missing time does not."""
    for sent, bound in ((LATEST + 1, LATEST), (EARLIEST - 1, EARLIEST)):
        message = to_message(QueueMessage((0, 1), "jobs", b"", sent=sent), "q", "n", None)
        assert message.timestamp == bound * 1000
        assert message.headers[0][0] == ERROR_HEADER
    untimed = to_message(QueueMessage((0, 1), "jobs", b"", sent=-1), "q", "n", None)
    assert (untimed.timestamp, untimed.headers) == (0, ())


def test_entries_become_messages_without_what_queues_have_added() -> None:
    """The namespace names the queue, and headers of an earlier queue are left out."""
    headers = (("transporter-redeliveries", b"2"), ("a", b"1"), ("transporter-reason", b""))
    batch = entries([Message("mails", b"v", b"k", headers=headers), Message("bills", None)])
    assert list(to_outgoing(batch, "q.{namespace}")) == [
        Outgoing("q.mails", b"v", b"k", [("a", b"1")]),
        Outgoing("q.bills", None, None, []),
    ]
