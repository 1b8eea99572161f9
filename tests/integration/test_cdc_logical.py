"""Logical messages of ``postgres-cdc``: an outbox without a table, and heartbeats."""

from __future__ import annotations

import json
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from cdc_tools import LOG_ID, MemoryLog, clean_slots, started
from engine_tools import until
from transporter_adaptors.postgres_cdc.config import CdcConfig
from transporter_adaptors.postgres_cdc.reader import HEARTBEAT, CdcReader

from transporter.outbox import Record, emit, emit_many
from transporter.testing import FixedResume
from transporter.testing.contracts import messages_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from services.postgres import Database

    from transporter.adaptor import Gauge

pytestmark = pytest.mark.postgres
MESSAGES: list[dict[str, Any]] = [
    {},
    {"prefix": "audit", "format": "raw", "namespace": "log.audit"},
]


@pytest.fixture
def shop(postgres: Database) -> Iterator[Database]:
    """Yield a database with a table of items, whose slots are dropped at the end."""
    postgres.execute("CREATE TABLE items (id int PRIMARY KEY)")
    with clean_slots(postgres):
        yield postgres


def entries(log: MemoryLog) -> list[tuple[str, bytes | None, bytes | None]]:
    """Return namespace, key and data of what is not a mark."""
    return [(each.namespace, each.key, each.data) for each in log.messages if each.op != "noop"]


def test_records_come_in_the_order_of_commits(shop: Database) -> None:
    """They stand between the changes of their transaction, and one of a rollback never comes."""
    log = started(shop, messages=MESSAGES)
    with shop.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO items VALUES (1)")
        emit(connection, Record("orders", "7", '{"total": 9.90}', {"a": "ä"}))
        connection.execute("INSERT INTO items VALUES (2)")
        connection.commit()
        emit(connection, Record("orders", "8", "{}"))
        connection.rollback()
        emit_many(connection, [Record("orders", "9", None), Record("orders", "10", "[]")])
        connection.execute("SELECT pg_logical_emit_message(true, 'audit', '\\xff00'::bytea)")
        connection.execute("SELECT pg_logical_emit_message(true, 'foreign', 'x')")
        connection.commit()
    log.drain(shop)
    log.kill()
    assert entries(log) == [
        ("public.items", b"1", b'{"id":1}'),
        ("orders", b"7", b'{"total": 9.90}'),
        ("public.items", b"2", b'{"id":2}'),
        ("orders", b"9", None),
        ("orders", b"10", b"[]"),
        ("log.audit", None, b"\xff\x00"),
    ]
    record = next(each for each in log.messages if each.key == b"7")
    assert record.headers == (("a", "ä".encode()),)


@pytest.mark.exhaustive
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_transaction_of_messages_goes_on_where_it_was_cut(shop: Database, rows: int) -> None:
    """A kill between any two changes repeats nothing and leaves nothing out."""
    log = started(shop, messages=MESSAGES, batch_rows=rows)
    shop.execute("INSERT INTO items VALUES (1000)")
    log.drain(shop)
    with shop.connect(autocommit=False) as connection:
        for number in range(6):
            connection.execute("INSERT INTO items VALUES (%s), (%s)", [number, 100 + number])
            emit(connection, Record("orders", str(number), "{}"))
            emit(connection, Record("orders", str(number), "[]"))
        connection.commit()
    begun = len(entries(log))
    while (count := len(entries(log))) < begun + 24:
        log.kill()
        until(lambda count=count: log.poll(0.1) and len(entries(log)) > count)  # type: ignore[misc]
    log.drain(shop)
    log.kill()
    assert [(key, data) for _, key, data in entries(log)[begun:]] == [
        pair
        for number in range(6)
        for pair in (
            (b"%d" % number, b'{"id":%d}' % number),
            (b"%d" % (100 + number), b'{"id":%d}' % (100 + number)),
            (b"%d" % number, b"{}"),
            (b"%d" % number, b"[]"),
        )
    ]
    ids = [each.source_id for each in log.messages if each.source_id]
    assert len(ids) == len({*ids})


def test_messages_outside_of_transactions_come_once(shop: Database) -> None:
    """They come at their place, and the position moves beyond them without any other change."""
    log = started(shop, messages=MESSAGES)
    for number in range(3):
        shop.execute("SELECT pg_logical_emit_message(false, 'audit', %s)", [f"loose {number}"])
        until(lambda number=number: log.poll(0.1) and len(entries(log)) == number + 1)  # type: ignore[misc]
        log.kill()
    shop.execute("INSERT INTO items VALUES (1)")
    log.drain(shop)
    log.kill()
    assert entries(log) == [
        *(("log.audit", None, b"loose %d" % number) for number in range(3)),
        ("public.items", b"1", b'{"id":1}'),
    ]


@pytest.fixture
def written(shop: Database) -> Callable[[], int]:
    """Return a function that counts the heartbeats in the server's log from now on."""
    shop.execute("CREATE PUBLICATION watched")
    shop.execute("SELECT pg_create_logical_replication_slot('watched', 'pgoutput')")
    query = (
        "SELECT count(*) FROM pg_logical_slot_peek_binary_changes('watched', NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'watched', 'messages', 'true')"
        " WHERE position(%s::bytea IN data) > 0"
    )
    return lambda: int(shop.execute(query, [HEARTBEAT.encode()])[0][0])


class Lag(FixedResume):
    """Keeps every lag that a reader measures."""

    def __init__(self) -> None:
        super().__init__(None, LOG_ID)
        self.seconds: list[float] = []

    def measure(self, gauge: Gauge, value: float | None) -> None:
        if gauge == "lag_seconds" and value is not None:
            self.seconds.append(value)
        super().measure(gauge, value)


def test_heartbeats_measure_the_lag(shop: Database, written: Callable[[], int]) -> None:
    """A reader's own heartbeats measure its lag, and none becomes an entry."""
    settings = {
        "dsn": shop.dsn,
        "tables": ["public.*"],
        "slot": "own",
        "heartbeat": "1s",
        "messages": [{"prefix": HEARTBEAT, "format": "raw", "namespace": "beats"}],
    }
    found, lag = [], Lag()
    with closing(CdcReader(CdcConfig.model_validate(settings))) as reader:
        reader.open(lag)

        def poll() -> bool:
            found.extend(messages_of(reader.poll(0.1).messages))
            return written() >= 4 and max(lag.seconds, default=0.0) >= 1000

        for slot, sent in (("another", 0.0), ("own", time.time() - 1000)):
            content = json.dumps({"slot": slot, "time": sent})
            shop.execute("SELECT pg_logical_emit_message(false, %s, %s)", [HEARTBEAT, content])
        until(poll)
        shop.execute("INSERT INTO items VALUES (1)")
        until(lambda: poll() and any(each.op != "noop" for each in found))
    assert [each.namespace for each in found if each.op != "noop"] == ["public.items"]
    assert max(lag.seconds) < 2000


def test_heartbeats_are_written_on_request_alone(
    shop: Database, written: Callable[[], int]
) -> None:
    """A reader without the setting writes no heartbeat."""
    log = started(shop, messages=MESSAGES)
    shop.execute("INSERT INTO items VALUES (1)")
    log.drain(shop)
    log.kill()
    assert [each[0] for each in entries(log)] == ["public.items"]
    assert written() == 0
