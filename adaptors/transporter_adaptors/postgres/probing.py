"""Checks of an outbox before anything is read from it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

from transporter.adaptor import Finding
from transporter.election.inspection import check_reachable
from transporter_adaptors.postgres.inspection import describe_polling, has_notify_trigger, locate
from transporter_adaptors.postgres.session import connect, server_text, translate_errors
from transporter_adaptors.postgres.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transporter_adaptors.postgres.config import OutboxConfig
    from transporter_adaptors.postgres.session import Connection

_PATIENCE: Final = 5.0
"""Half of the seconds that one call may take."""
_TERMS: Final = """
SELECT pg_catalog.to_regclass(%(terms)s) IS NOT NULL,
    CASE WHEN pg_catalog.to_regclass(%(terms)s) IS NULL
    THEN pg_catalog.has_schema_privilege(%(schema)s, 'CREATE')
    ELSE pg_catalog.has_table_privilege(%(terms)s, 'SELECT')
        AND pg_catalog.has_table_privilege(%(terms)s, 'INSERT')
        AND pg_catalog.has_table_privilege(%(terms)s, 'UPDATE') END
"""


def probe_outbox(config: OutboxConfig, rights: Sequence[str]) -> Iterator[Finding]:
    """Yield findings about the table that *config* names, and about our *rights* on it."""
    with closing(connect(config.dsn, _PATIENCE)) as connection:
        yield Finding(server_text(connection, connection.info.user))
        table = locate(connection, TableName.parse(config.table), rights, config.names)
        yield Finding(f"table {table}: columns, index and rights are correct")
        with translate_errors(f"cannot look up the objects beside the outbox table {table}"):
            yield _check_terms(connection, table)
            yield _check_trigger(connection, table, config)
    if elected := check_reachable(config.elector):
        yield Finding(elected)


def _check_terms(connection: Connection, table: TableName) -> Finding:
    terms = table.sibling("transporter_term")
    names = {"terms": str(terms), "schema": table.schema}
    ((there, allowed),) = connection.execute(_TERMS, names).fetchall()
    if there and allowed:
        return Finding(f"table {terms}: exists, with the rights that a term needs")
    if there:
        return Finding(f"table {terms}: GRANT SELECT, INSERT, UPDATE on it", "problem")
    if allowed:
        return Finding(f"table {terms}: the first start creates it")
    return Finding(
        f"there is no table {terms}, and this role may not create it in schema {table.schema}: "
        "'transporter outbox init PIPELINE' prints its SQL",
        "problem",
    )


def _check_trigger(connection: Connection, table: TableName, config: OutboxConfig) -> Finding:
    if has_notify_trigger(connection, table, config.notify_channel):
        return Finding(f"a trigger of {table} notifies of new rows")
    return Finding(describe_polling(table, config.notify_channel, config.poll_interval), "warning")
