"""Removal of the objects that ``transporter outbox init`` creates: trigger, function and table.

Objects that were changed since their creation stay. The table ``transporter_term``, which an
engine creates, stays too. If the outbox is created again, it identifies the log that owned the
rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from transporter.errors import ActionRefused
from transporter.outbox.creation import check_columns
from transporter.outbox.database import require_table, translate_errors

if TYPE_CHECKING:
    from transporter.outbox.database import Connection, OutboxTable
    from transporter.outbox.table import Columns

# The function is ours only if it has the trigger's name. Another one may serve other triggers.
_TRIGGER: Final = """
SELECT pg_catalog.quote_ident(t.tgname),
    CASE WHEN p.proname = t.tgname THEN p.oid::pg_catalog.regprocedure::text END
FROM pg_catalog.pg_trigger t
JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
WHERE c.oid::bigint = %s AND NOT t.tgisinternal AND t.tgname = (c.relname || '_notify')::name
"""


@dataclass(frozen=True, slots=True)
class Removable:
    """A table with the trigger and the function that ``init`` created, as far as they exist.

    ``rows`` is the number of its rows.
    """

    table: OutboxTable
    trigger: str | None
    function: str | None
    rows: int


def find_removable(connection: Connection, table: str, columns: Columns | None) -> Removable:
    """Return the removable objects of *table* without changing anything.

    Raises:
        EnvironmentFault: If *table* does not exist, or is not an outbox with *columns*. With
            ``None`` any table is accepted.
    """
    there = require_table(connection, table)
    with translate_errors(f"cannot read {there.name}"):
        if columns is not None:
            check_columns(connection, table, columns, there.name)
        row = connection.execute(_TRIGGER, [there.oid]).fetchone()
        trigger, function = row or (None, None)
        return Removable(there, trigger, function, _count_rows(connection, there))


def drop_objects(connection: Connection, removable: Removable, *, table: bool, force: bool) -> int:
    """Drop trigger and function, and if *table* is set the table, in one transaction.

    Returns:
        The number of rows that were dropped with the table.

    Raises:
        ActionRefused: If the table holds rows, including those inserted since *removable* was
            read, unless *force* is set.
    """
    name, rows = removable.table.name, 0
    with translate_errors(f"cannot drop {name}; nothing was dropped"), connection.transaction():
        if table:
            # The lock waits for inserting transactions, so that their rows count.
            _execute(connection, f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE")
            rows = _count_rows(connection, removable.table)
            refuse_rows(name, rows, force=force)
        if removable.trigger:
            _execute(connection, f"DROP TRIGGER {removable.trigger} ON {name}")
        if removable.function:
            _execute(connection, f"DROP FUNCTION {removable.function}")
        if table:
            _execute(connection, f"DROP TABLE {name}")
    return rows


def refuse_rows(name: str, rows: int, *, force: bool) -> None:
    """Raise ``ActionRefused`` if the table holds *rows*, unless *force* is set."""
    if rows and not force:
        raise ActionRefused(
            f"{name} contains {rows:,} undelivered rows; nothing was dropped; run the engine until "
            "they are delivered, or drop them with --force"
        )


def _count_rows(connection: Connection, table: OutboxTable) -> int:
    row = _execute(connection, f"SELECT count(*) FROM {table.name}").fetchone()  # noqa: S608 - quoted
    return int(row[0]) if row else 0


def _execute(connection: Connection, statement: str) -> Any:  # noqa: ANN401 - as psycopg's
    # As bytes, because a per cent sign is literal without parameters.
    return connection.execute(statement.encode())
