"""Creation of an outbox table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from psycopg import errors as pg

from transporter.errors import EnvironmentFault
from transporter.outbox.database import find_table, require_table, translate_errors
from transporter.outbox.table import USUAL, Columns, outbox_sql, quote_table, trigger_sql

if TYPE_CHECKING:
    from transporter.outbox.database import Connection

_OLDEST: Final = 140_000
"""PostgreSQL 14, the first with CREATE OR REPLACE TRIGGER."""
_DOING: Final = (
    "cannot create {}; let a user with the right run the SQL that 'transporter outbox init' prints"
)
_LOOK: Final = "SELECT {} FROM {} LIMIT 0"


class Created(NamedTuple):
    """The table by its full name, and whether it is new."""

    table: str
    created: bool


def create_table(
    connection: Connection, table: str, channel: str, columns: Columns = USUAL
) -> Created:
    """Create the outbox *table* with *columns* and its trigger on *channel*, in one transaction.

    An existing table keeps its columns and settings, and gets the trigger.

    Raises:
        EnvironmentFault: If the existing table is not an outbox, the server is too
            old, or a right is missing.
    """
    _check_server(connection)
    with translate_errors(_DOING.format(f"the outbox table {table}")), connection.transaction():
        there = find_table(connection, table)
        if there is not None:
            check_columns(connection, table, columns, there.name)
        connection.execute(outbox_sql(table, channel, columns).encode())
        return Created(require_table(connection, table).name, created=there is None)


def create_trigger(connection: Connection, table: str, channel: str) -> str:
    """Make the existing *table* notify *channel* of its new rows, and return its full name.

    Raises:
        EnvironmentFault: If the table does not exist, the server is too old, or a right
            is missing.
    """
    _check_server(connection)
    with translate_errors(_DOING.format(f"the trigger of {table}")), connection.transaction():
        there = find_table(connection, table)
        if there is None:
            database = connection.info.dbname
            raise EnvironmentFault(
                f"there is no table {table} in database {database}; check its name"
            )
        connection.execute(trigger_sql(table, channel).encode())
    return there.name


def _check_server(connection: Connection) -> None:
    if connection.info.server_version < _OLDEST:
        version = connection.info.parameter_status("server_version")
        raise EnvironmentFault(f"the server runs PostgreSQL {version}; an outbox needs 14 or newer")


def check_columns(connection: Connection, table: str, columns: Columns, full_name: str) -> None:
    """Raise ``EnvironmentFault`` if *table*, called *full_name*, lacks one of *columns*."""
    names = ", ".join(columns.quoted_names().values())
    try:
        connection.execute(_LOOK.format(names, quote_table(table)).encode())
    except pg.UndefinedColumn as error:
        raise EnvironmentFault(
            f"the table {full_name} is not an outbox: {error.diag.message_primary}; name another "
            "table with --table, or the columns of this one with --column"
        ) from error
