"""Several outbox tables of one database in one pipeline, and one table for two readers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from acceptance_tools import await_true, running, transporter

from transporter.outbox import Columns, Record, outbox_sql, stash_many

if TYPE_CHECKING:
    from pathlib import Path

    from services.postgres import Database

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.timeout(400)]

ORDERS, AUDIT, USERS = '"Shop 5%"."Out""box"', '"Shop 5%"."%s"', 'people."Outbox"'
TABLES = (ORDERS, AUDIT, USERS)
NAMES = {"id": '"Row %"', "value": '"The ""Value"""', "leader": "taken_by"}
COLUMNS = {ORDERS: Columns(), AUDIT: Columns(), USERS: Columns(**NAMES)}
READERS = [
    {"name": "orders", "table": ORDERS, "notify_channel": "orders"},
    {"name": "audit", "table": AUDIT, "notify_channel": "audit", "claim": "take"},
    {"name": "users", "table": USERS, "notify_channel": "users", "columns": NAMES},
]


def write(folder: Path, readers: list[dict[str, object]]) -> Path:
    """Write a pipeline of these readers, whose route writes keys and data into a file."""
    file = folder / "pipeline.yaml"
    source = {"adaptor": "postgres-outbox", "dsn": "${ORDERS_DSN}"}
    route = {"name": "out", "writer": {"adaptor": "file", "path": "out.jsonl", "format": "data"}}
    text = {"name": "tables", "log": {"dir": "log"}, "routes": [route]}
    file.write_text(json.dumps({**text, "readers": [{**source, **each} for each in readers]}))
    return file


def fill(database: Database, first: int, count: int) -> None:
    """Commit rows to all tables in one transaction after the other."""
    with database.connect(autocommit=False) as connection:
        for number in range(first, first + count):
            for table in TABLES:
                record = Record.json("events", f"{number % 7}", [table, number])
                cursor = connection.cursor()
                stash_many(cursor, [record], table=table, columns=COLUMNS[table])
            connection.commit()


def left(database: Database) -> list[int]:
    """Count the rows of each table."""
    return [database.execute(f"SELECT count(*) FROM {table}")[0][0] for table in TABLES]


def delivered(folder: Path) -> list[list[object]]:
    """Return the keys and data in the file."""
    file = folder / "out.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def terms(database: Database) -> list[int]:
    """Return the numbers of the tables' last terms."""
    query = (
        'SELECT outbox, term FROM "Shop 5%".transporter_term'
        " UNION ALL SELECT outbox, term FROM people.transporter_term"
    )
    found = dict(database.execute(query))
    return [found[table] for table in TABLES]


@pytest.mark.exhaustive
def test_tables_do_not_disturb_one_another(postgres: Database, tmp_path: Path) -> None:
    """Of three tables, two in one schema, each row arrives once, in order, across a kill.

    A row too large for the log stays in its table and is parked, once a term.
    """
    postgres.execute('CREATE SCHEMA "Shop 5%"; CREATE SCHEMA people')
    for reader, table in zip(READERS, TABLES, strict=True):
        postgres.execute(outbox_sql(table, str(reader["notify_channel"]), COLUMNS[table]))
    pipeline = write(tmp_path, READERS)
    for table in (AUDIT, USERS):
        value = COLUMNS[table].quoted_names()["value"]
        postgres.execute(
            f"INSERT INTO {table} (kafka_topic, kafka_key, {value})"
            " VALUES ('events', 'large', repeat('x', 9 << 20))"
        )
    with running(pipeline, ORDERS_DSN=postgres.dsn) as engine:
        for reader in READERS:
            engine.await_event("reader-opened", reader=reader["name"])
        fill(postgres, 0, 200)
        await_true(lambda: delivered(tmp_path) != [], 150, "a first delivery")
        engine.kill()
    assert terms(postgres) == [1, 1, 1]
    with running(pipeline, ORDERS_DSN=postgres.dsn) as engine:
        fill(postgres, 200, 200)
        await_true(lambda: left(postgres) == [0, 1, 1], 60, "tables with nothing but large rows")
        await_true(lambda: len(delivered(tmp_path)) == 1200, 150, "all rows")
        assert engine.stop() == 0
        assert [each for each in engine.events if each["event"] == "reader-stopped"] == []
    assert terms(postgres) == [2, 2, 2]
    assert left(postgres) == [0, 1, 1]
    for table in TABLES:
        for key in range(7):
            expected = [number for number in range(400) if number % 7 == key]
            found = [n for name, n in delivered(tmp_path) if name == table and n % 7 == key]
            assert found == expected
    parked = transporter("parked", "list", str(tmp_path / "log"), "out")
    assert [each["entry"]["key"] for each in parked] == ["large"] * 4
    assert all("the row is too large" in json.dumps(each) for each in parked)


@pytest.mark.exhaustive
def test_two_readers_of_one_table_are_told_so(postgres: Database, tmp_path: Path) -> None:
    """One of them stops at once with the reason, and the other one continues."""
    postgres.execute(outbox_sql())
    twice = [{"name": "one"}, {"name": "two", "table": "public.outbox", "claim": "take"}]
    with running(write(tmp_path, twice), ORDERS_DSN=postgres.dsn) as engine:
        problem = engine.await_event("reader-stopped")["problem"]
        assert problem.startswith("fenced: ")
        assert "for another reader of this pipeline" in problem
        assert "remove the other one, or this one, from the pipeline file" in problem
        with postgres.connect() as connection:
            stash_many(connection.cursor(), [Record("t", "k", "[]")])
        empty = "SELECT count(*) FROM outbox"
        await_true(lambda: postgres.execute(empty) == [(0,)], 60, "an empty outbox")
        assert engine.stop() == 1
    assert transporter("log", "info", str(tmp_path / "log"))["last"] == 0
