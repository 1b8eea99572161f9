"""Removes what ``transporter outbox init`` has created: a trigger with its function, and a table.

What is not there, or is not as it was created, stays. The table ``transporter_term``, which an
engine creates, stays too: it tells a log whose rows these were, should the outbox come back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from transporter.errors import ActionRefused
from transporter.outbox.creation import check_columns
from transporter.outbox.database import require_table, translate_errors

if TYPE_CHECKING:
    from transporter.outbox.database import Connection, Found
    from transporter.outbox.table import Columns

# Its function is ours only under its own name: another one may serve other triggers.
_TRIGGER: Final = """
SELECT pg_catalog.quote_ident(t.tgname),
    CASE WHEN p.proname = t.tgname THEN p.oid::pg_catalog.regprocedure::text END
FROM pg_catalog.pg_trigger t
JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
WHERE c.oid::bigint = %s AND NOT t.tgisinternal AND t.tgname = (c.relname || '_notify')::name
"""


@dataclass(frozen=True, slots=True)
class Removable:
    """A table with the trigger and the function that ``init`` gave it, where they are there.

    ``rows`` is how many it holds.
    """

    table: Found
    trigger: str | None
    function: str | None
    rows: int


def find_removable(connection: Connection, table: str, columns: Columns | None) -> Removable:
    """Return what there is to remove; changes nothing.

    Raise ``EnvironmentFault`` without *table*, and when it is no outbox with *columns*; with
    ``None`` any table will do.
    """
    there = require_table(connection, table)
    with translate_errors(f"cannot look at {there.name}"):
        if columns is not None:
            check_columns(connection, table, columns, there.name)
        row = connection.execute(_TRIGGER, [there.oid]).fetchone()
        trigger, function = row or (None, None)
        return Removable(there, trigger, function, _count(connection, there))


def drop(connection: Connection, found: Removable, *, table: bool, force: bool) -> int:
    """Drop trigger and function, and with *table* that too, in one transaction, or nothing.

    Return how many rows went with it. Raise ``ActionRefused`` when the table holds rows, those
    that came since *found* was read included, unless that is to *force*.
    """
    name, rows = found.table.name, 0
    with translate_errors(f"cannot drop {name}; nothing was dropped"), connection.transaction():
        if table:
            # Transactions that insert are waited for: their rows count.
            _run(connection, f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE")
            rows = _count(connection, found.table)
            refuse_rows(name, rows, force=force)
        if found.trigger:
            _run(connection, f"DROP TRIGGER {found.trigger} ON {name}")
        if found.function:
            _run(connection, f"DROP FUNCTION {found.function}")
        if table:
            _run(connection, f"DROP TABLE {name}")
    return rows


def refuse_rows(name: str, rows: int, *, force: bool) -> None:
    """Raise ``ActionRefused`` for a table that holds *rows*, unless that is to *force*."""
    if rows and not force:
        raise ActionRefused(
            f"{name} holds {rows:,} rows that are not delivered yet, and nothing was dropped: run "
            "the engine until they are, or lose them with --force"
        )


def _count(connection: Connection, table: Found) -> int:
    row = _run(connection, f"SELECT count(*) FROM {table.name}").fetchone()  # noqa: S608 - quoted
    return int(row[0]) if row else 0


def _run(connection: Connection, statement: str) -> Any:  # noqa: ANN401 - as psycopg's
    # As bytes: without parameters a per cent sign is itself.
    return connection.execute(statement.encode())
