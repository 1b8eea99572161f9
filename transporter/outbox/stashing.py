"""Insertion of records into the outbox through the application's own cursor."""

from __future__ import annotations

from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from transporter.outbox.record import Record
from transporter.outbox.table import DEFAULT, USUAL, Columns, quote_table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

# create_time is set although our table has a default, because goharvest's table has none.
_INSERT: Final = (
    "INSERT INTO {table} ({created}, {topic}, {key}, {value}, {header_keys}, {header_values})"
    " VALUES (now(), %s, %s, %s, %s::text[], %s::text[])"
)

_Row = tuple[str, str, str | None, list[str], list[str]]


class Executes(Protocol):
    """A cursor or connection of psycopg 3, or a DB-API cursor with ``%s`` parameters and lists."""

    def execute(self, query: Any, parameters: Any, /) -> Any:  # noqa: ANN401 - drivers differ
        """Run one statement."""


class ExecutesMany(Protocol):
    """A cursor of such a driver."""

    def executemany(self, query: Any, parameters: Any, /) -> Any:  # noqa: ANN401 - drivers differ
        """Run one statement for each of the parameters."""


class ExecutesAsync(Protocol):
    """An async cursor or connection of psycopg 3, or of a driver with the same interface."""

    def execute(self, query: Any, parameters: Any, /) -> Awaitable[Any]:  # noqa: ANN401 - as above
        """Run one statement."""


class ExecutesManyAsync(Protocol):
    """An async cursor of such a driver."""

    def executemany(self, query: Any, parameters: Any, /) -> Awaitable[Any]:  # noqa: ANN401 - as above
        """Run one statement for each of the parameters."""


def stash(
    cursor: Executes, record: Record, *, table: str = DEFAULT, columns: Columns = USUAL
) -> None:
    """Insert *record* into the outbox, in the current transaction of *cursor*.

    The event exists exactly when that transaction commits. The function itself does
    not commit. It is as thread-safe as the cursor, and raises the driver's errors
    unchanged.

    Args:
        cursor: A cursor or connection of the application.
        record: The event.
        table: ``name``, ``schema.name``, or quoted as in SQL.
        columns: The names of the table's columns.
    """
    refuse_async(cursor.execute(_insert_statement(table, columns), _to_row(record)), "stash")


def stash_many(
    cursor: ExecutesMany,
    records: Iterable[Record],
    *,
    table: str = DEFAULT,
    columns: Columns = USUAL,
) -> int:
    """Insert *records* in order, as :func:`stash` does, and return their number."""
    rows = [_to_row(record) for record in records]
    if rows:
        refuse_async(cursor.executemany(_insert_statement(table, columns), rows), "stash_many")
    return len(rows)


async def stash_async(
    cursor: ExecutesAsync, record: Record, *, table: str = DEFAULT, columns: Columns = USUAL
) -> None:
    """Insert *record* into the outbox, in the current transaction of the async *cursor*.

    It has the same guarantees as :func:`stash`.
    """
    await cursor.execute(_insert_statement(table, columns), _to_row(record))


async def stash_many_async(
    cursor: ExecutesManyAsync,
    records: Iterable[Record],
    *,
    table: str = DEFAULT,
    columns: Columns = USUAL,
) -> int:
    """Insert *records* in order, as :func:`stash_async` does, and return their number."""
    rows = [_to_row(record) for record in records]
    if rows:
        await cursor.executemany(_insert_statement(table, columns), rows)
    return len(rows)


def _insert_statement(table: str, columns: Columns) -> str:
    # A per cent sign in a name must not start another parameter.
    return _INSERT.format(table=quote_table(table).replace("%", "%%"), **columns.escaped_names())


def _to_row(record: Record) -> _Row:
    if not isinstance(record, Record):
        raise TypeError(f"stash takes a transporter.outbox.Record, not {type(record).__name__}")
    names, values = [name for name, _ in record.pairs], [value for _, value in record.pairs]
    return record.topic, record.key, record.value, names, values


def refuse_async(result: object, name: str) -> None:
    """Refuse a coroutine, because it would never be awaited and the event would be lost."""
    if iscoroutine(result):
        result.close()
        raise TypeError(f"{name} does not take an async cursor; use: await {name}_async(...)")
