"""Tests of passing records to a driver, and of cursors of the other kind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from transporter.outbox import Columns, Record, stash, stash_async, stash_many, stash_many_async

RECORD = Record("orders", "7", "{}", [("a", "1")])


class Statements:
    """A DB-API cursor that keeps its statements."""

    def __init__(self) -> None:
        self.given: list[tuple[str, Any]] = []

    def execute(self, query: str, parameters: Any) -> None:
        self.given.append((query, parameters))

    def executemany(self, query: str, parameters: Any) -> None:
        self.given.append((query, parameters))


class AsyncStatements:
    """The same cursor for async code."""

    def __init__(self) -> None:
        self.given: list[tuple[str, Any]] = []

    async def execute(self, query: str, parameters: Any) -> None:
        self.given.append((query, parameters))

    async def executemany(self, query: str, parameters: Any) -> None:
        self.given.append((query, parameters))


def test_a_record_is_one_statement_with_parameters() -> None:
    """A record's values are parameters, and never part of the SQL."""
    cursor = Statements()
    stash(cursor, RECORD, table='Shop."Out%box"')
    ((query, parameters),) = cursor.given
    assert query.startswith('INSERT INTO "shop"."Out%%box" (create_time, kafka_topic')
    assert query.count("%s") == 5
    assert parameters == ("orders", "7", "{}", ["a"], ["1"])


def test_columns_of_other_names_are_quoted() -> None:
    """Parameters stay parameters for any column names, and usual names stay unchanged."""
    cursor = Statements()
    columns = Columns(key='"%s"', value='"a""b; --"', header_keys="SELECT")
    stash(cursor, RECORD, columns=columns)
    ((query, parameters),) = cursor.given
    assert query.startswith(
        'INSERT INTO "outbox" (create_time, kafka_topic, "%%s", "a""b; --", "select",'
        " kafka_header_values)"
    )
    assert query.replace("%%", "").count("%s") == 5
    assert parameters == ("orders", "7", "{}", ["a"], ["1"])


def test_sync_and_async_say_the_same() -> None:
    """The sync and async functions pass the same statements to the driver."""
    cursor, awaited = Statements(), AsyncStatements()

    async def both() -> int:
        await stash_async(awaited, RECORD)
        return await stash_many_async(awaited, [RECORD, RECORD])

    stash(cursor, RECORD)
    assert stash_many(cursor, [RECORD, RECORD]) == asyncio.run(both()) == 2
    assert cursor.given == awaited.given


def test_no_records_are_no_statement() -> None:
    """An empty list of records is not passed to the driver, because drivers differ there."""
    cursor, awaited = Statements(), AsyncStatements()
    assert stash_many(cursor, []) == 0
    assert asyncio.run(stash_many_async(awaited, iter([]))) == 0
    assert cursor.given == awaited.given == []


def test_an_async_cursor_is_not_mistaken() -> None:
    """An async cursor in a sync function, which would insert nothing, is an error."""
    with pytest.raises(TypeError, match="await stash_async"):
        stash(AsyncStatements(), RECORD)
    with pytest.raises(TypeError, match="await stash_many_async"):
        stash_many(AsyncStatements(), [RECORD])


def test_only_records_are_taken() -> None:
    """One wrong item among many is refused before any is inserted."""
    cursor = Statements()
    with pytest.raises(TypeError, match=r"takes a transporter\.outbox\.Record, not dict"):
        stash_many(cursor, [RECORD, {"topic": "t"}])  # type: ignore[list-item] # the point
    assert cursor.given == []


@pytest.mark.parametrize("table", ["", "a b", "outbox; drop table x", "a.b.c", "x" * 64])
def test_what_is_no_table_name_is_refused(table: str) -> None:
    """A text that is not a table name never reaches a statement."""
    cursor = Statements()
    with pytest.raises(ValueError, match=r"table name|longer than"):
        stash(cursor, RECORD, table=table)
    assert cursor.given == []


def test_an_application_gets_nothing_of_the_engine() -> None:
    """The import loads neither the engine nor its dependencies."""
    script = (
        "import sys, transporter.outbox\n"
        "heavy = {'pyarrow', 'pyspark', 'pydantic', 'confluent_kafka', 'lmdb', 'rich', 'typer'}\n"
        "names = {name for name in sys.modules if name.startswith('transporter.')}\n"
        "names = {name for name in names if not name.startswith('transporter.outbox')}\n"
        "print(sorted(heavy & set(sys.modules)), sorted(names), 'psycopg' in sys.modules)"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] [] False"
