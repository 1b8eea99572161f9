"""Puts records into the outbox through a cursor of the application's own."""

from __future__ import annotations

from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from transporter.outbox.record import Record
from transporter.outbox.table import DEFAULT, USUAL, Columns, quote_table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

# create_time is named although our table has a default: goharvest's has none.
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
    """An async cursor or connection of psycopg 3, or of a driver that is used in the same way."""

    def execute(self, query: Any, parameters: Any, /) -> Awaitable[Any]:  # noqa: ANN401 - as above
        """Run one statement."""


class ExecutesManyAsync(Protocol):
    """An async cursor of such a driver."""

    def executemany(self, query: Any, parameters: Any, /) -> Awaitable[Any]:  # noqa: ANN401 - as above
        """Run one statement for each of the parameters."""


def stash(
    cursor: Executes, record: Record, *, table: str = DEFAULT, columns: Columns = USUAL
) -> None:
    """Insert *record* into the outbox, in the transaction that *cursor* is in.

    The event exists exactly when that transaction commits; nothing is committed
    here. *table* is ``name``, ``schema.name``, or quoted as in SQL, and *columns* are
    what its columns are called. As thread-safe as the cursor. The driver's errors come
    as they are.
    """
    _refuse_async(cursor.execute(_insert(table, columns), _row(record)), "stash")


def stash_many(
    cursor: ExecutesMany,
    records: Iterable[Record],
    *,
    table: str = DEFAULT,
    columns: Columns = USUAL,
) -> int:
    """Insert *records* in their order, as :func:`stash` does; return how many they were."""
    rows = [_row(record) for record in records]
    if rows:
        _refuse_async(cursor.executemany(_insert(table, columns), rows), "stash_many")
    return len(rows)


async def stash_async(
    cursor: ExecutesAsync, record: Record, *, table: str = DEFAULT, columns: Columns = USUAL
) -> None:
    """Insert *record* into the outbox, in the transaction that the async *cursor* is in.

    Promises what :func:`stash` does.
    """
    await cursor.execute(_insert(table, columns), _row(record))


async def stash_many_async(
    cursor: ExecutesManyAsync,
    records: Iterable[Record],
    *,
    table: str = DEFAULT,
    columns: Columns = USUAL,
) -> int:
    """Insert *records* in their order, as :func:`stash_async` does; return how many they were."""
    rows = [_row(record) for record in records]
    if rows:
        await cursor.executemany(_insert(table, columns), rows)
    return len(rows)


def _insert(table: str, columns: Columns) -> str:
    # Beside parameters, a per cent sign of a name must not begin another one.
    return _INSERT.format(table=quote_table(table).replace("%", "%%"), **columns.escaped_names())


def _row(record: Record) -> _Row:
    if not isinstance(record, Record):
        raise TypeError(f"stash takes a transporter.outbox.Record, not {type(record).__name__}")
    names, values = [name for name, _ in record.pairs], [value for _, value in record.pairs]
    return record.topic, record.key, record.value, names, values


def _refuse_async(result: object, name: str) -> None:
    """Refuse what only promises to insert: nobody would ever await it, and the event be lost."""
    if iscoroutine(result):
        result.close()
        raise TypeError(f"{name} was given an async cursor; write: await {name}_async(...)")
