"""The division of a batch into parts, and the rows in one."""

from __future__ import annotations

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from transporter_adaptors.kafka.slice import Outgoing, PartSize, SentSlice

from transporter.message import Entries, Message
from transporter.testing import entries

LEAST = 1500


def outgoing(*namespaces: str, offsets: list[int] | None = None) -> Outgoing:
    """Return rows of these namespaces, of entries at *offsets*. ``bad`` has no topic."""
    batch = entries([Message(namespace, b"") for namespace in namespaces], 0)
    if offsets is not None:
        column = pa.array(offsets, pa.int64())
        batch = Entries(batch.batch.set_column(0, batch.batch.schema.field(0), column))
    return Outgoing(batch, lambda namespace: "" if namespace == "bad" else namespace)


def topics(found: Outgoing, first: int, most: int) -> list[str]:
    """Return the topics of these rows."""
    return [row[0] for row in found.rows(first, most)]


def test_rows_come_part_by_part() -> None:
    """Each part follows the one before it, and the last one has the rest."""
    found = outgoing("a", "b", "c", "d", "e")
    assert [topics(found, first, 2) for first in (0, 2, 4)] == [["a", "b"], ["c", "d"], ["e"]]
    assert (topics(found, 0, 100), found.row_without_topic) == (["a", "b", "c", "d", "e"], None)


def test_a_part_ends_with_an_entry() -> None:
    """All rows that a step made of one entry are in the same part, so that it can be acked."""
    found = outgoing("a", "b", "c", "d", "e", offsets=[1, 2, 2, 2, 3])
    assert topics(found, 0, 2) == ["a", "b", "c", "d"]
    assert topics(found, 4, 2) == ["e"]


@pytest.mark.parametrize("most", [1, 2, 100])
def test_nothing_comes_of_an_entry_without_a_topic_or_behind_it(most: int) -> None:
    """An entry with a row without a topic has no rows at all, nor has any later entry."""
    found = outgoing("a", "b", "bad", "c", "d", offsets=[1, 2, 2, 3, 4])
    assert topics(found, 0, most) == ["a"]
    assert topics(found, 1, most) == []
    assert found.row_without_topic == 2
    assert topics(found, 3, most) == []


def test_ids_are_behind_the_headers_of_each_row() -> None:
    """Each part has the same ids as the whole batch, and a missing source id is left out."""
    made = [Message("n", b"", headers=(("h", b"1"),)), *[Message("n", b"", source_id="s/2")] * 3]
    batch = entries(made, 0).batch
    column = pa.array([1, 2, 2, 3], pa.int64())
    numbered = Entries(batch.set_column(0, batch.schema.field(0), column), "log-1")
    parts = Outgoing(numbered, str, ids=True)
    headers = [
        row[4] for first, most in ((0, 1), (1, 1), (3, 1)) for row in parts.rows(first, most)
    ]
    assert headers == [
        [("h", b"1"), ("transporter-entry-id", b"log-1/1")],
        [("transporter-entry-id", b"log-1/2"), ("transporter-source-id", b"s/2")],
        [("transporter-entry-id", b"log-1/2/1"), ("transporter-source-id", b"s/2")],
        [("transporter-entry-id", b"log-1/3"), ("transporter-source-id", b"s/2")],
    ]
    assert [row[4] for row in Outgoing(numbered, str).rows(0, 4)] == [
        [("h", b"1")],
        None,
        None,
        None,
    ]


def test_a_wait_now_and_then_changes_nothing() -> None:
    """A broker that pauses now and then does not enlarge the parts, which a kill repeats."""
    pace = PartSize()
    for _ in range(20):
        for _ in range(31):
            pace.record_wait(0.9, 1.0)
        pace.record_wait(0.0, 1.0)
    assert pace.rows == LEAST


def test_parts_grow_while_the_brokers_are_waited_for() -> None:
    """Parts grow, up to a bound, while the writer waits for distant brokers."""
    pace = PartSize()
    for _ in range(32):
        pace.record_wait(0.26, 1.0)
    assert pace.rows == 2 * LEAST
    for _ in range(1000):
        pace.record_wait(0.9, 1.0)
    assert pace.rows == 32 * LEAST


def test_parts_shrink_when_nothing_is_waited_for() -> None:
    """Parts shrink once brokers answer at once again, so a kill repeats as little as before."""
    pace = PartSize()
    for _ in range(64):
        pace.record_wait(0.5, 1.0)
    assert pace.rows == 4 * LEAST
    for _ in range(199):
        pace.record_wait(0.1, 1.0)
    assert pace.rows == 4 * LEAST
    for _ in range(1000):
        pace.record_wait(0.1, 1.0)
    assert pace.rows == LEAST


class _FailedProducer:
    """A producer that takes everything and raises *error* at each flush."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def produce(self, *_: object) -> None:
        """Take a message."""

    def flush(self, _: float) -> int:
        """Fail as a client that cannot be used any more."""
        raise self.error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KafkaException(KafkaError(KafkaError._FENCED, "x", fatal=True)), KafkaError._FENCED),
        (SystemError("<flush> returned NULL without setting an exception"), KafkaError._FATAL),
    ],
)
def test_a_client_that_failed_for_good_blames_no_row(error: Exception, code: int) -> None:
    """A fatal error is kept, also one whose reason the client has lost. Nothing counts."""
    rows = outgoing("a", "b").rows(0, 2)
    part = SentSlice(_FailedProducer(error), rows, 0.0, 1_000_000)
    part.deliver()
    assert part.fatal_error is not None
    assert part.fatal_error.code() == code
    assert (part.count_delivered(), part.failure()) == (0, None)


def test_an_error_that_is_not_the_clients_is_raised() -> None:
    """A SystemError of something else is not taken for the client's."""
    part = SentSlice(_FailedProducer(SystemError("odd")), outgoing("a").rows(0, 1), 0.0, 1_000_000)
    with pytest.raises(SystemError, match="odd"):
        part.deliver()
