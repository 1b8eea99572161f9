"""Lookup of the outbox table, and checks of all that the reader needs, before anything is read."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

from transporter.adaptor import Finding
from transporter.election.inspection import check_reachable
from transporter.errors import EnvironmentFault, SourceUnavailable
from transporter_adaptors.postgres.columns import OutboxColumns
from transporter_adaptors.postgres.router import RoutedColumns
from transporter_adaptors.postgres.session import connect, server_text, translate_errors
from transporter_adaptors.postgres.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transporter_adaptors.postgres.config import OutboxConfig
    from transporter_adaptors.postgres.session import Connection

_INTEGERS: Final = frozenset({"int2", "int4", "int8"})
_TEXTS: Final = frozenset({"text", "varchar"})
_ARRAYS: Final = frozenset({"_text", "_varchar"})
_TYPES: Final = {
    "id": _INTEGERS,
    "created": frozenset({"timestamptz"}),
    "topic": _TEXTS,
    "key": _TEXTS,
    "value": _TEXTS,
    "header_keys": _ARRAYS,
    "header_values": _ARRAYS,
    "leader": frozenset({"uuid"}),
}
_PAYLOADS: Final = frozenset({"json", "jsonb", "text", "varchar"})
_TIMES: Final = frozenset({"timestamp", "timestamptz"})
_NUMBERS: Final = "bigint GENERATED ALWAYS AS IDENTITY UNIQUE"
_CREATED: Final = "timestamptz NOT NULL DEFAULT now()"
_FIND: Final = """
SELECT c.oid, n.nspname::text, c.relname::text, c.relkind = 'p',
       has_table_privilege(c.oid, 'SELECT'),
       has_any_column_privilege(c.oid, 'UPDATE'),
       has_table_privilege(c.oid, 'DELETE')
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = pg_catalog.to_regclass(%s)
"""
_ATTRIBUTES: Final = """
SELECT a.attname::text, t.typname::text
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
"""
# A partitioned table cannot have a unique index on any column, a view none at all.
_INDEXED: Final = """
SELECT c.relkind NOT IN ('r', 'p') OR EXISTS (
    SELECT FROM pg_catalog.pg_index i
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL AND a.attname = %s
        AND (c.relkind = 'p' OR i.indisunique AND i.indnkeyatts = 1)
) FROM pg_catalog.pg_class c WHERE c.oid = %s
"""
# Sequences that the column owns, or that its default uses.
_CACHES: Final = """
SELECT s.seqrelid::regclass::text, s.seqcache
FROM pg_catalog.pg_sequence s JOIN pg_catalog.pg_attribute a ON a.attrelid = %s AND a.attname = %s
WHERE s.seqcache > 1 AND s.seqrelid IN (
    SELECT d.objid FROM pg_catalog.pg_depend d
    WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.deptype IN ('a', 'i')
        AND d.refclassid = d.classid AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum
    UNION
    SELECT d.refobjid FROM pg_catalog.pg_attrdef f
    JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_attrdef'::regclass AND d.objid = f.oid
        AND d.refclassid = 'pg_catalog.pg_class'::regclass
    WHERE f.adrelid = a.attrelid AND f.adnum = a.attnum
) ORDER BY 1
"""
# Bit 2 of a trigger's type means INSERT. A function with a literal channel must name ours.
_NOTIFIES: Final = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
    WHERE t.tgrelid = pg_catalog.to_regclass(%s) AND NOT t.tgisinternal
        AND t.tgenabled IN ('O', 'A') AND t.tgtype & 4 = 4 AND p.prosrc ILIKE '%%notify%%'
        AND (pg_catalog.strpos(p.prosrc, %s) > 0 OR p.prosrc
            !~* 'pg_notify[[:space:]]*[(][[:space:]]*E?''[^'']*''[[:space:]]*,')
)
"""
_RIGHTS: Final = ("SELECT", "UPDATE", "DELETE")

# A table can always be changed, but a view only if it is simple, or by its triggers.
_CHANGEABLE: Final = """
SELECT pg_catalog.pg_relation_is_updatable(a.attrelid, true),
    pg_catalog.pg_column_is_updatable(a.attrelid, a.attnum, true)
FROM pg_catalog.pg_attribute a WHERE a.attrelid = %s AND a.attname = %s
"""
_UPDATES, _DELETES = 4, 16
_PROBE_SECONDS: Final = 5.0
"""Half of the seconds that one call may take."""
_TERM_RIGHTS: Final = """
SELECT pg_catalog.to_regclass(%(terms)s) IS NOT NULL,
    CASE WHEN pg_catalog.to_regclass(%(terms)s) IS NULL
    THEN pg_catalog.has_schema_privilege(%(schema)s, 'CREATE')
    ELSE pg_catalog.has_table_privilege(%(terms)s, 'SELECT')
        AND pg_catalog.has_table_privilege(%(terms)s, 'INSERT')
        AND pg_catalog.has_table_privilege(%(terms)s, 'UPDATE') END
"""


def locate(
    connection: Connection,
    table: TableName,
    rights: Sequence[str] = _RIGHTS,
    columns: OutboxColumns | None = None,
) -> TableName:
    """Return the full name of *table* after checking that it is complete and usable.

    Args:
        connection: The session.
        table: The name from the settings.
        rights: The privileges that the role needs.
        columns: The columns' names, by default the usual ones.

    Raises:
        SourceUnavailable: There is no such table.
        EnvironmentFault: The table does not meet the requirements. The message has the
            command or SQL that helps.
    """
    with translate_errors(f"cannot look up the outbox table {table}"):
        found = connection.execute(_FIND, [table.identifier.as_string(connection)]).fetchone()
        if found is None:
            raise SourceUnavailable(
                f"there is no outbox table {table} in database {connection.info.dbname}; "
                "'transporter outbox init PIPELINE --run' creates it, and without --run prints "
                "the SQL for a role that may"
            )
        oid, schema, name, partitioned, *granted = found
        full = TableName(name, schema)
        held = dict(zip(_RIGHTS, granted, strict=True))
        _check_rights(full, [(right, held[right]) for right in rights], connection.info.user)
        present = dict(connection.execute(_ATTRIBUTES, [oid]).fetchall())
        columns = columns or OutboxColumns()
        if isinstance(columns, RoutedColumns):
            _check_routed(full, columns, present, partitioned=partitioned)
        else:
            _check_columns(full, columns, present)
        if connection.execute(_INDEXED, [columns.id, oid]).fetchone() != (True,):
            raise EnvironmentFault(_describe_missing_index(full, columns, partitioned=partitioned))
        ((events, mark),) = connection.execute(
            _CHANGEABLE, [oid, columns.leader or columns.id]
        ).fetchall()
        _check_changeable(full, columns, rights, events, mark=mark)
    return full


def caching_sequences(
    connection: Connection, table: TableName, columns: OutboxColumns | None = None
) -> list[str]:
    """Return problem and remedy for each sequence of *table*'s ids that sessions cache.

    A session inserts its cached numbers behind higher ones of other sessions. Order is then
    lost, and nothing could detect it afterwards.
    """
    column = (columns or OutboxColumns()).id
    with translate_errors(f"cannot look up the sequence of the outbox table {table}"):
        name = table.identifier.as_string(connection)
        oid = connection.execute("SELECT %s::regclass::oid", [name]).fetchone()
        found = connection.execute(_CACHES, [*(oid or ()), column]).fetchall()
    return [
        f"each session takes {cache} numbers at once from the sequence {sequence}, so a row may be "
        f"read before an earlier one of its key; run ALTER SEQUENCE {sequence} CACHE 1 (open "
        "sessions first use up their numbers)"
        for sequence, cache in found
    ]


def has_notify_trigger(connection: Connection, table: TableName, channel: str) -> bool:
    """Return whether a trigger of *table* visibly notifies *channel* of new rows."""
    spelt = channel.replace("'", "''").replace("\\", "\\\\")
    with translate_errors(f"cannot look up the triggers of the outbox table {table}"):
        name = table.identifier.as_string(connection)
        return connection.execute(_NOTIFIES, [name, f"'{spelt}'"]).fetchone() == (True,)


def describe_polling(table: TableName, channel: str, interval: float) -> str:
    """Return how *table* is read without such a trigger, and the command that installs one."""
    return (
        f"no trigger of {table} notifies the channel {channel} of new rows, so it is polled, with "
        f"pauses of up to {interval:g} s (poll_interval); 'transporter outbox init PIPELINE "
        "--run' installs the trigger, and without --run prints its SQL"
    )


def probe_outbox(config: OutboxConfig, rights: Sequence[str]) -> Iterator[Finding]:
    """Yield findings about the table that *config* names, and about our *rights* on it."""
    with closing(connect(config.dsn, _PROBE_SECONDS)) as connection:
        yield Finding(server_text(connection, connection.info.user))
        table = locate(connection, TableName.parse(config.table), rights, config.names)
        yield Finding(f"table {table}: columns, index and rights are correct")
        with translate_errors(f"cannot look up the objects beside the outbox table {table}"):
            yield _probe_terms(connection, table)
            yield _probe_trigger(connection, table, config)
    if elected := check_reachable(config.elector):
        yield Finding(elected)


def _probe_terms(connection: Connection, table: TableName) -> Finding:
    terms = table.sibling("transporter_term")
    names = {"terms": str(terms), "schema": table.schema}
    ((there, allowed),) = connection.execute(_TERM_RIGHTS, names).fetchall()
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


def _probe_trigger(connection: Connection, table: TableName, config: OutboxConfig) -> Finding:
    if has_notify_trigger(connection, table, config.notify_channel):
        return Finding(f"a trigger of {table} notifies of new rows")
    return Finding(describe_polling(table, config.notify_channel, config.poll_interval), "warning")


def _check_rights(table: TableName, needed: list[tuple[str, bool]], role: str) -> None:
    missing = [right for right, held in needed if not held]
    if missing:
        raise EnvironmentFault(
            f"the role {role} lacks {', '.join(missing)} on the outbox table {table}; "
            f"run GRANT {', '.join(right for right, _ in needed)} ON {table} TO {TableName(role)}"
        )


def _check_columns(table: TableName, columns: OutboxColumns, present: dict[str, str]) -> None:
    wrong = [
        f"{_label(role, name)} is {present[name]}, not {' or '.join(sorted(_TYPES[role]))}"
        if name in present
        else f"{_label(role, name)} is missing"
        for role, name in columns.items()
        if present.get(name) not in _TYPES[role]
    ]
    if wrong:
        raise EnvironmentFault(
            f"the table {table} is not an outbox: {'; '.join(wrong)}. Name another one, or its "
            "columns under columns of the reader, or change the table; 'transporter outbox init' "
            "prints the SQL of an outbox"
        )


def _check_routed(
    table: TableName, columns: RoutedColumns, present: dict[str, str], *, partitioned: bool
) -> None:
    """Refuse a table that is not an event router's, or that lacks our own columns."""
    router = columns.router
    theirs = [router.event_id, router.event_key, router.payload, router.route_by]
    theirs += [each.column for each in router.additional]
    theirs += [router.timestamp] if router.timestamp else []
    wrong = [f"{name} is missing" for name in theirs if TableName.parse(name).name not in present]
    payloads = frozenset({"bytea"}) if router.binary else _PAYLOADS
    types = {columns.value: payloads, columns.created: _TIMES, columns.id: _INTEGERS}
    types |= {columns.leader: _TYPES["leader"]}
    wrong += [
        f"{TableName(name)} is {present[name]}, not {' or '.join(sorted(fitting))}"
        + (" (binary: true reads it)" if present[name] == "bytea" and fitting is _PAYLOADS else "")
        for name, fitting in types.items()
        if name in present and present[name] not in fitting
    ]
    if wrong:
        raise EnvironmentFault(
            f"the table {table} does not match the router in the settings: {'; '.join(wrong)}. "
            "Name another table, or its columns under router"
        )
    numbers = "bigserial" if partitioned else _NUMBERS
    made = {columns.id: numbers, columns.created: _CREATED, columns.leader: "uuid"}
    if lacking := [name for name in made if name and name not in present]:
        adding = ",\n".join(f"    ADD COLUMN {TableName(name)} {made[name]}" for name in lacking)
        raise EnvironmentFault(
            f"the table {table} lacks {', '.join(lacking)}: an event router follows the server's "
            "log, and this reader needs rows that are numbered. Applications that insert by "
            f"column name are not affected by this SQL:\n  ALTER TABLE {table}\n{adding};"
        )


def _check_changeable(
    table: TableName, columns: OutboxColumns, rights: Sequence[str], events: int, *, mark: bool
) -> None:
    needed = _DELETES | (_UPDATES if "UPDATE" in rights else 0)
    wrong = ""
    if events & needed != needed:
        wrong = f"the rows of {table} cannot be changed"
    elif "UPDATE" in rights and not mark:
        wrong = f"the column {_label('leader', columns.leader)} of {table} cannot be updated"
    if wrong:
        raise EnvironmentFault(
            f"{wrong}, because it is a view that PostgreSQL cannot write to: name the "
            "table under it, or give it INSTEAD OF triggers"
        )


def _describe_missing_index(table: TableName, columns: OutboxColumns, *, partitioned: bool) -> str:
    if partitioned:
        return (
            f"the table {table} is not an outbox: rows of all partitions are read by "
            f"{_label('id', columns.id)}, and no index begins with it; run CREATE INDEX ON {table} "
            f"({TableName(columns.id)})"
        )
    # Invariant 7: rows are purged by id.
    return (
        f"the table {table} is not an outbox: rows are identified by "
        f"{_label('id', columns.id)}, which has no unique index; "
        f"run ALTER TABLE {table} ADD UNIQUE ({TableName(columns.id)})"
    )


def _label(role: str, name: str) -> str:
    usual = name == getattr(OutboxColumns(), role)
    return name if usual else f"{TableName(name)} (columns: {role})"
