"""Logical messages of ``postgres-cdc``: an outbox without a table, and heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cdc_tools import LOG_ID, MemoryLog, clean_slots, started
from engine_tools import until
from transporter_adaptors.postgres_cdc.config import CdcConfig
from transporter_adaptors.postgres_cdc.reader import CdcReader

from transporter.outbox import Record, emit, emit_many
from transporter.testing import FixedResume

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.postgres import Database

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


def test_heartbeats_measure_the_lag(shop: Database) -> None:
    """They are written on request alone, and none becomes an entry."""
    settings = {"dsn": shop.dsn, "tables": ["public.*"], "heartbeat": "1s"}
    reader = CdcReader(CdcConfig.model_validate(settings))
    resume = FixedResume(None, LOG_ID)
    reader.open(resume)

    def is_measured() -> bool:
        reader.poll(0.1)
        return 0.0 < (resume.measured.get("lag_seconds") or 0.0) < 5.0

    until(is_measured)
    reader.close()
