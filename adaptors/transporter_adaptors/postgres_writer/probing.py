"""Checks of a target before anything is written to it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

import psycopg

from transporter.adaptor import Finding
from transporter.errors import RouteFault
from transporter_adaptors.postgres.session import server_text
from transporter_adaptors.postgres_writer.append_mode import check_columns
from transporter_adaptors.postgres_writer.catalog import Catalog
from transporter_adaptors.postgres_writer.config import split_name
from transporter_adaptors.postgres_writer.evolution import check_schema
from transporter_adaptors.postgres_writer.failures import sink_error
from transporter_adaptors.postgres_writer.progress import exists, progress_ddl
from transporter_adaptors.postgres_writer.session import connect

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from transporter.message import Message
    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres.table import TableName
    from transporter_adaptors.postgres_writer.config import PostgresWriterConfig
    from transporter_adaptors.postgres_writer.table import Table

_PATIENCE: Final = 10.0
_MAY_CREATE: Final = """
SELECT coalesce(pg_catalog.has_schema_privilege(coalesce(%s, current_schema()), 'CREATE'), false)
"""
_RIGHTS: Final = """
SELECT bool_and(pg_catalog.has_table_privilege(%s, right_name))
FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) AS right_name
"""


def probe_target(config: PostgresWriterConfig) -> Iterator[Finding]:
    """Yield findings about the server, the table of offsets, and the tables known by now."""
    with closing(connect(config, _PATIENCE)) as connection:
        yield Finding(server_text(connection, connection.info.user))
        try:
            yield _probe_progress(connection, config)
            catalog = Catalog(connection, config)
            for name in config.fixed_tables:
                yield _probe_table(catalog, name, config)
        except psycopg.Error as error:
            raise sink_error(error, "cannot look at the tables") from error
    if not config.fixed_tables:
        yield Finding(f"tables of {config.table} are checked when the first entry comes")


def probe_tables(config: PostgresWriterConfig, entries: Iterable[Message]) -> Iterator[Finding]:
    """Yield the problems that the tables described by *entries* would have at the target."""
    if config.evolve == "none" or not config.upserts:
        return
    creates = config.evolve == "create"
    with closing(connect(config, _PATIENCE)) as connection:
        catalog = Catalog(connection, config)
        try:
            for entry in entries:
                name = config.table_of(entry.namespace)
                try:
                    check_schema(connection, catalog, name, entry.data or b"", creates=creates)
                except (RouteFault, ValueError) as error:
                    yield Finding(str(error), "problem")
        except psycopg.Error as error:
            raise sink_error(error, "cannot look at the tables") from error


def check_table(catalog: Catalog, name: TableName, config: PostgresWriterConfig) -> Table:
    """Return the table *name* if entries can be written to it in the mode of *config*.

    Raises:
        psycopg.Error: The catalog cannot be read.
        RouteFault: They cannot.
    """
    table = catalog.table(name)
    if config.mode == "append":
        check_columns(table)
    return table


def _probe_progress(connection: Connection, config: PostgresWriterConfig) -> Finding:
    name = split_name(config.progress)
    if exists(connection, str(name)):
        row = connection.execute(_RIGHTS, [str(name)]).fetchone()
        if row and row[0]:
            return Finding(f"table {name}: exists, with the rights that it needs")
        return Finding(f"table {name}: GRANT SELECT, INSERT, UPDATE on it", "problem")
    row = connection.execute(_MAY_CREATE, [name.schema]).fetchone()
    if row and row[0]:
        return Finding(f"table {name}: the first start creates it")
    return Finding(
        f"there is no table {name}, and this role may not create it in its schema: create it for "
        f"this role by\n{progress_ddl(name)};",
        "problem",
    )


def _probe_table(catalog: Catalog, name: TableName, config: PostgresWriterConfig) -> Finding:
    try:
        if config.evolve == "create" and catalog.find(name) is None:
            return Finding(f"table {name}: the entry with its columns creates it")
        table = check_table(catalog, name, config)
    except RouteFault as fault:
        return Finding(str(fault), "problem")
    key = f", and the key {', '.join(table.key)}" if table.key else ""
    return Finding(f"table {table.name}: has the rights that it needs{key}")
