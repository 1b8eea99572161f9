"""SQL for a DBA: the role, its rights, the publication and the slot."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from transporter.change_source import SetupScript
from transporter.errors import TransporterError
from transporter_adaptors.postgres.session import translate_errors
from transporter_adaptors.postgres_cdc import publication as pub
from transporter_adaptors.postgres_cdc import server as servers
from transporter_adaptors.postgres_cdc.operating.services import VARIANTS
from transporter_adaptors.postgres_cdc.plan import find_plan, table_problems
from transporter_adaptors.postgres_cdc.session import COMMAND_PATIENCE, connect_queries
from transporter_adaptors.postgres_cdc.slot import FAILOVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from transporter.change_source import Service
    from transporter_adaptors.postgres.table import TableName
    from transporter_adaptors.postgres_cdc.config import CdcConfig
    from transporter_adaptors.postgres_cdc.operating.logged import LoggedState

_ROLE: Final = "transporter"
"""The role and the database where the dsn is not known."""
_PASSWORD: Final = ":'password'"  # noqa: S105 - a variable of psql
_HEADER: Final = """\
-- Reader {reader}: SQL for a DBA, in the database {database}.
-- In psql, -v password=… replaces :'password'. Leave out what exists already,
-- or let 'transporter cdc init PIPELINE --run' create only what is missing.

-- Settings of the server, by other means than this script:"""
_RESTART_POINTS: Final = """\
-- On PostgreSQL 16 or newer this lets the slot keep less of the server's log during the copy:
--   GRANT EXECUTE ON FUNCTION pg_log_standby_snapshot() TO {role};"""


@dataclass(frozen=True, slots=True)
class SetupTarget:
    """The role of the reader and its database. The server's version may be unknown."""

    role: str
    database: str
    version: int | None = None


class Grant(NamedTuple):
    """A right on the database (``None``), a schema or a table, and the statement that grants it."""

    on: str | TableName | None
    statement: str


@dataclass(frozen=True, slots=True)
class _Tables:
    """The tables to publish, as far as they are known."""

    wanted: list[pub.WantedTable]
    version: int | None = None
    notes: tuple[str, ...] = ()


def quote(name: str) -> str:
    """Return *name* as an identifier in SQL."""
    return sql.Identifier(name).as_string()


def target_of(config: CdcConfig, version: int | None = None) -> SetupTarget:
    """Return role and database as the dsn of *config* and libpq's environment name them."""
    dsn = config.dsn.get_secret_value()
    if not dsn:
        return SetupTarget(_ROLE, _ROLE, version)
    defaults = {
        each.keyword.decode(): each.val.decode() for each in Conninfo.get_defaults() if each.val
    }
    given = {**defaults, **conninfo_to_dict(dsn)}
    role = str(given.get("user") or _ROLE)
    return SetupTarget(role, str(given.get("dbname") or role), version)


def make_script(config: CdcConfig, logged: LoggedState, service: Service) -> SetupScript:
    """Return the script, whose tables come from the database only if there are patterns."""
    tables = _find_tables(config)
    target = target_of(config, tables.version)
    variant = VARIANTS[service]
    lines = [_HEADER.format(reader=logged.reader, database=target.database)]
    lines += [f"--   {each}" for each in variant.settings]
    lines += ["", "-- The role of the reader's dsn."]
    roles = [variant.create.format(role=quote(target.role), password=_PASSWORD)]
    if not variant.is_created_replicating:
        roles.append(variant.replicate.format(role=quote(target.role)))
    granted = [each.statement for each in grants(config, target, tables.wanted)]
    lines += [f"{each};" for each in (*roles, *granted)]
    if any(config.copies(item) for item in config.tables):
        lines.append(_RESTART_POINTS.format(role=quote(target.role)))
    lines += ["", *_publication_lines(config, logged, tables.wanted)]
    lines += ["", *_slot_lines(config, logged, target)]
    return SetupScript("\n".join(lines) + "\n", tables.notes)


def _find_tables(config: CdcConfig) -> _Tables:
    patterns = [item.table for item in config.tables if item.is_pattern and not item.excludes]
    if not patterns:
        return _Tables(_named_tables(config))
    try:
        with (
            closing(connect_queries(config.dsn, COMMAND_PATIENCE)) as queries,
            translate_errors("cannot look up the tables"),
        ):
            server = servers.read_server(queries)
            plan = find_plan(queries, config, server)
    except TransporterError as error:
        note = (
            f"the tables of {', '.join(patterns)} are not in it, because only the database knows "
            f"them: {' '.join(str(error).split())}"
        )
        return _Tables(_named_tables(config), notes=(note,))
    problems = tuple(table_problems(config, plan))
    return _Tables(list(plan.wanted.values()), server.version, problems)


def _named_tables(config: CdcConfig) -> list[pub.WantedTable]:
    """Return the tables that *config* names without a pattern."""
    named = {
        item.name: item
        for item in config.tables
        if not item.is_pattern and config.item_of(item.name) is item
    }
    return [
        pub.WantedTable(name, item.columns, item.where, item.insert_only)
        for name, item in named.items()
    ]


def grants(
    config: CdcConfig, target: SetupTarget, tables: Iterable[pub.WantedTable]
) -> Iterator[Grant]:
    """Yield the statements that let a role connect, and read *tables* for the copy."""
    role = quote(target.role)
    yield Grant(None, f"GRANT CONNECT ON DATABASE {quote(target.database)} TO {role}")
    if not any(config.copies(item) for item in config.tables):
        return
    tables = list(tables)
    for schema in sorted({table.name.schema or "public" for table in tables}):
        yield Grant(schema, f"GRANT USAGE ON SCHEMA {quote(schema)} TO {role}")
    for table in tables:
        columns = f" ({', '.join(map(quote, table.columns))})" if table.columns else ""
        name = table.name.identifier.as_string()
        yield Grant(table.name, f"GRANT SELECT{columns} ON {name} TO {role}")


def _publication_lines(
    config: CdcConfig, logged: LoggedState, tables: Sequence[pub.WantedTable]
) -> Iterator[str]:
    yield "-- The publication. The tables' owner runs this, with CREATE on the database."
    if config.manage == "all":
        yield "-- The first start creates it, if the reader's role is that owner."
    for name, publish in logged.names.kinds.items():
        mine = [
            table
            for table in tables
            if logged.names.publication_of(insert_only=table.insert_only) == name
        ]
        if mine:
            yield f"{pub.create_statement(name, mine, publish).as_string()};"


def _slot_lines(config: CdcConfig, logged: LoggedState, target: SetupTarget) -> Iterator[str]:
    yield "-- The slot. From here on the server keeps its log until the engine has read it."
    if config.manage != "nothing":
        yield "-- The first start creates it."
    if not logged.slot:
        yield "-- Its name is made of the log's id, which the first start creates too; or set slot."
        return
    if config.failover and target.version is None:
        yield "-- PostgreSQL 17 and newer: add the argument failover => true."
    yield f"{slot_statement(config, logged.slot, target.version)};"


def slot_statement(config: CdcConfig, slot: str, version: int | None) -> str:
    """Return the statement that creates the slot *slot* on a server of this *version*."""
    has_failover = config.failover and version is not None and version >= FAILOVER
    more = ", failover => true" if has_failover else ""
    name = sql.Literal(slot).as_string()
    return f"SELECT pg_create_logical_replication_slot({name}, 'pgoutput'{more})"
