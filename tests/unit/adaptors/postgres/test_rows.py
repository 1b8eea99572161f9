"""Rows of the outbox as messages."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transporter_adaptors.postgres.columns import OutboxColumns
from transporter_adaptors.postgres.rows import (
    CARRIED,
    LARGEST,
    LargeRow,
    OutboxRow,
    find_flaw,
    measure_unloggable,
    report_large,
    to_batch,
)

from transporter.log.commit_log import split_for_append
from transporter.message import ERROR_HEADER, JSON, MESSAGE_SCHEMA, Entries, Message, with_offsets

AT_2000 = 946_684_800_000_000
GOOD = OutboxRow(7, 5, b"orders", b"k1", b'{"a":1}', [b"h"], [b"v"])


def messages(*rows: OutboxRow) -> list[Message]:
    """Return the messages made of *rows*."""
    batch = to_batch(rows, "outbox")
    assert batch.schema == MESSAGE_SCHEMA
    batch.validate(full=True)
    return [entry.message for entry in Entries(with_offsets(batch, 0, 0))]


def test_a_row_maps_to_a_message() -> None:
    """Every column has its field, and time counts from 1970."""
    assert messages(GOOD) == [
        Message(
            namespace="orders",
            data=b'{"a":1}',
            key=b"k1",
            op="insert",
            timestamp=AT_2000 + 5,
            source_id="outbox/7",
            content_type=JSON,
            headers=(("h", b"v"),),
        )
    ]


def test_null_is_a_tombstone_and_empty_is_not() -> None:
    """NULL becomes a delete without data, and the empty text stays data."""
    gone, empty = messages(GOOD._replace(value=None), GOOD._replace(value=b""))
    assert (gone.op, gone.data) == ("delete", None)
    assert (empty.op, empty.data) == ("insert", b"")


def test_headers_keep_order_duplicates_and_nulls() -> None:
    """Header pairs stay with their row, in their order."""
    one = GOOD._replace(header_keys=[b"a", b"b", b"a"], header_values=[b"1", None, "ü".encode()])
    none = GOOD._replace(header_keys=[], header_values=[])
    assert [message.headers for message in messages(one, none, GOOD)] == [
        (("a", b"1"), ("b", None), ("a", "ü".encode())),
        (),
        (("h", b"v"),),
    ]


def test_a_row_without_a_key_has_none() -> None:
    """A NULL key (forbidden by goharvest's table) makes a message without a key."""
    assert messages(GOOD._replace(key=None))[0].key is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"header_keys": [b"a", b"b"]}, "2 header names, but 1 header values"),
        ({"header_keys": [None]}, "header name is NULL"),
        ({"header_keys": [[b"a"]]}, "nested"),
        ({"header_values": [[b"a"]]}, "more than one dimension"),
        ({"header_keys": None}, "header array is NULL"),
        ({"header_values": None}, "header array is NULL"),
        ({"topic": None}, "topic"),
        ({"topic": b"\xff"}, "not valid UTF-8"),
        ({"header_values": [b"\xff"]}, "not valid UTF-8"),
        ({"create_time": 2**63 - 1}, "create_time"),
        ({"create_time": -(2**63)}, "create_time"),
        ({"create_time": 10**18}, "create_time"),
        ({"create_time": None}, "create_time is NULL"),
    ],
)
def test_a_bad_row_is_marked_and_keeps_its_columns(change: dict[str, object], reason: str) -> None:
    """A bad row is published as JSON of its columns, with the reason."""
    bad = GOOD._replace(**change)  # type: ignore[arg-type] # the point of it
    before, message, after = messages(GOOD, bad, GOOD)
    assert before == after
    ((name, why),) = message.headers
    assert name == "transporter-error"
    assert reason in (why or b"").decode()
    raw = json.loads(message.data or b"")
    assert (raw["id"], raw["kafka_key"]) == (7, "k1")
    assert raw["kafka_value"] == '{"a":1}'
    assert (message.op, message.key, message.source_id) == ("insert", b"k1", "outbox/7")
    assert message.namespace == ("outbox" if "topic" in change else "orders")


def test_a_key_or_a_value_that_is_not_utf8_is_a_flaw() -> None:
    """A key or value that is not UTF-8 is a flaw, and the key stays for the order of its rows."""
    before, key, value, after = messages(
        GOOD, GOOD._replace(key=b"\xff"), GOOD._replace(value=b"\xff"), GOOD
    )
    assert before == after
    for message in (key, value):
        ((name, why),) = message.headers
        assert name == ERROR_HEADER
        assert b"not valid UTF-8" in (why or b"")
    assert (key.key, value.key) == (b"\xff", b"k1")
    assert json.loads(value.data or b"")["kafka_value"] == "\\xff"


def test_an_infinite_time_is_told_by_name() -> None:
    """The raw columns of a bad row show PostgreSQL's spelling of infinity."""
    (message,) = messages(GOOD._replace(create_time=2**63 - 1))
    assert json.loads(message.data or b"")["create_time"] == "infinity"


def test_a_row_without_a_time_is_dated_1970() -> None:
    """A row without a time is dated 1970, and its raw columns show that it has none."""
    (message,) = messages(GOOD._replace(create_time=None))
    assert message.timestamp == 0
    assert json.loads(message.data or b"")["create_time"] is None


def test_the_first_and_last_expressible_times_are_good() -> None:
    """Times in the years 1 and 9999 are accepted."""
    assert find_flaw(GOOD._replace(create_time=-63_082_281_600_000_000)) is None
    assert find_flaw(GOOD._replace(create_time=252_455_615_999_999_999)) is None
    assert find_flaw(GOOD._replace(create_time=252_455_616_000_000_000)) is not None


TEXT = st.none() | st.sampled_from([b"", b"a", b"\xff", "ü".encode()])
HEADERS = st.none() | st.lists(TEXT | st.lists(TEXT, max_size=1), max_size=2)
ROWS = st.builds(
    OutboxRow,
    st.integers(-(2**63), 2**63 - 1),
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-(10**9), 10**9),
    TEXT,
    TEXT,
    TEXT,
    HEADERS,
    HEADERS,
)


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_no_row_fails(rows: list[OutboxRow]) -> None:
    """Each row becomes one message, and is marked exactly when it has a flaw."""
    marked = [ERROR_HEADER in dict(message.headers) for message in messages(*rows)]
    assert marked == [find_flaw(row) is not None for row in rows]


@pytest.mark.parametrize("headers", [0, 1, 100_000])
@pytest.mark.parametrize("large", [1, 2, 3, 4])
def test_the_log_takes_what_is_not_too_large(headers: int, large: int) -> None:
    """One append accepts LARGEST bytes, with 8 for each array element, in any column."""
    row = OutboxRow(2**63 - 1, 0, b"t", b"k", b"v", [b""] * headers, [None] * headers)
    left = LARGEST - 3 - 16 * headers
    cells: list[object] = list(row)
    if large < 4:
        cells[large + 1] = b"x" * (left + 1)
    elif headers:
        cells[6] = [b"x" * left, *[None] * (headers - 1)]
    (batch,) = split_for_append(to_batch([cells], '"' + "x" * 130 + '"'))
    assert batch.num_rows == 1


TOLD = LargeRow(7, 5, b"orders", b"k1", 6, 2, 9_000_000, 11, 12)


def test_a_row_that_is_too_large_is_told_of() -> None:
    """Key and topic stay, the data give each column's size, and the header the remedy."""
    (message,) = messages(
        report_large(TOLD, '"S".outbox', '"S".outbox', OutboxColumns(id="N r", value="v"))
    )
    assert (message.namespace, message.key, message.source_id) == ("orders", b"k1", "outbox/7")
    assert json.loads(message.data or b"") == {
        "table": '"S".outbox',
        "row": {
            "N r": 7,
            "create_time": "2000-01-01T00:00:00.000005+00:00",
            "kafka_topic": "orders",
            "kafka_key": "k1",
        },
        "bytes": {
            "kafka_topic": 6,
            "kafka_key": 2,
            "v": 9_000_000,
            "kafka_header_keys": 11,
            "kafka_header_values": 12,
        },
    }
    ((_, why),) = message.headers
    assert b"9000031 bytes" in (why or b"")
    assert (why or b"").endswith(b'; then DELETE FROM "S".outbox WHERE "N r" = 7')


def test_a_large_row_without_topic_or_time_is_told_of() -> None:
    """A missing topic is replaced by the table, and a missing key is left out."""
    large = TOLD._replace(topic=None, key=None, create_time=2**63 - 1)
    (message,) = messages(report_large(large, "public.outbox", "outbox"))
    assert (message.namespace, message.key) == ("outbox", None)
    assert json.loads(message.data or b"")["row"]["create_time"] == "infinity"
    (message,) = messages(report_large(large._replace(create_time=None), "public.outbox", "outbox"))
    assert json.loads(message.data or b"")["row"]["create_time"] is None


def test_a_bad_row_may_be_too_large_as_json() -> None:
    """Only a bad row is measured by its JSON, and its long key is left out."""
    control = b"\x01" * (LARGEST // 5)
    assert measure_unloggable(GOOD._replace(value=control), "outbox") is None
    assert measure_unloggable(GOOD._replace(header_keys=[]), "outbox") is None
    found = measure_unloggable(GOOD._replace(value=control, header_keys=[]), "outbox")
    assert found == LargeRow(7, 5, b"orders", b"k1", 6, 2, len(control), 0, 9)
    found = measure_unloggable(
        GOOD._replace(key=control, topic=b"x" * CARRIED, header_keys=[]), "outbox"
    )
    assert found is not None
    assert (found.topic, found.key) == (b"x" * CARRIED, None)
