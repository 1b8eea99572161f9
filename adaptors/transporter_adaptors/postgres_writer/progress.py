"""The table of stored offsets, and the fence in front of every slice."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import psycopg

from transporter.adaptor import StoredOffset
from transporter.errors import RouteFault
from transporter_adaptors.postgres.session import CREATED_MEANWHILE
from transporter_adaptors.postgres_writer.config import split_name
from transporter_adaptors.postgres_writer.statements import quote_table

if TYPE_CHECKING:
    from datetime import datetime

    from transporter.adaptor import WriterContext
    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres.table import TableName

_TABLE: Final = """CREATE TABLE IF NOT EXISTS {table} (
    owner        text NOT NULL,  -- the log, or the pipeline whose engines take turns
    route        text NOT NULL,
    shard        integer NOT NULL,
    holder       text NOT NULL,  -- the writer that may write
    holder_log   text NOT NULL,
    holder_epoch bigint NOT NULL,
    log_id       text,
    epoch        bigint,
    generation   integer,
    shards       integer,
    "offset"     bigint,
    run          text,
    updated_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (owner, route, shard)
) WITH (fillfactor = 50)"""
_STORED: Final = 'log_id, route, epoch, generation, shard, shards, "offset", run'
_CLAIM: Final = f"""
INSERT INTO {{table}} AS p (owner, route, shard, holder, holder_log, holder_epoch)
VALUES (%(owner)s, %(route)s, %(shard)s, %(holder)s, %(log_id)s, %(epoch)s)
ON CONFLICT (owner, route, shard) DO UPDATE
SET holder = EXCLUDED.holder, holder_log = EXCLUDED.holder_log,
    holder_epoch = EXCLUDED.holder_epoch, updated_at = now()
WHERE p.holder_log <> EXCLUDED.holder_log OR p.holder_epoch <= EXCLUDED.holder_epoch
RETURNING {_STORED}
"""  # noqa: S608 - of constants
_END_OTHER_SHARDS: Final = """
UPDATE {table} SET holder = '' WHERE owner = %(owner)s AND route = %(route)s
AND shard >= %(shards)s AND (holder_log <> %(log_id)s OR holder_epoch <= %(epoch)s)
"""
_IS_PERMANENT: Final = """
SELECT relpersistence = 'p' FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(%s)
"""
_LOCK: Final = """
SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('transporter ' || %(route)s, 0))
"""
_OTHERS: Final = """
SELECT owner, coalesce(log_id, holder_log), updated_at FROM {table}
WHERE route = %(route)s AND owner <> %(owner)s AND holder_log <> %(log_id)s
ORDER BY updated_at DESC LIMIT 1
"""
_FENCE: Final = f"""
SELECT {_STORED} FROM {{table}} WHERE owner = %(owner)s AND route = %(route)s
AND shard = %(shard)s AND holder = %(holder)s FOR UPDATE
"""  # noqa: S608 - of constants
_STORE: Final = """
UPDATE {table} SET log_id = %s, epoch = %s, generation = %s, shards = %s, "offset" = %s, run = %s,
    updated_at = now()
WHERE owner = %s AND route = %s AND shard = %s
"""


class Progress:
    """The stored offset of one writer, which is the only one that may write while it holds it."""

    def __init__(self, table: str, context: WriterContext) -> None:
        """Name the *table*, and the writer by *context*."""
        self.name = split_name(table)
        self._context = context
        self._table = quote_table(self.name)
        self._values = {
            "owner": context.turns or context.log_id,
            "route": context.route,
            "shard": context.shard,
            "shards": context.shards,
            "holder": secrets.token_hex(16),
            "log_id": context.log_id,
            "epoch": context.epoch,
        }
        self._sent: StoredOffset | None = None
        self._committed: StoredOffset | None = None

    @property
    def ddl(self) -> str:
        """The statement that creates the table."""
        return progress_ddl(self.name)

    def create(self, connection: Connection) -> None:
        """Create the table if it is missing.

        Raises:
            psycopg.Error: It could not be looked up.
            RouteFault: It is missing, and may not be created, or a crash would empty it.
        """
        if exists(connection, str(self.name)):
            self._check_permanent(connection)
            return
        try:
            # Shards may create it at the same moment.
            with suppress(*CREATED_MEANWHILE):
                connection.execute(self.ddl)
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidSchemaName) as error:
            raise RouteFault(
                f"there is no table {self.name}, and it may not be created "
                f"({error.diag.message_primary}): create it for this role by\n{self.ddl};"
            ) from error

    def _check_permanent(self, connection: Connection) -> None:
        if connection.execute(_IS_PERMANENT, [str(self.name)]).fetchone() == (False,):
            raise RouteFault(
                f"{self.name} is unlogged or temporary: the stored offset would be gone after a "
                f"crash of the server; run ALTER TABLE {self.name} SET LOGGED"
            )

    def claim(self, connection: Connection) -> StoredOffset | None:
        """Fence every earlier writer of this route and shard, and return the stored offset.

        Raises:
            psycopg.Error: The table cannot be written.
            RouteFault: A newer writer, or another log, has it.
        """
        with connection.transaction():
            # Of two logs that claim one route at the same moment, the second sees the first.
            self._execute(connection, _LOCK)
            other = self._execute(connection, _OTHERS).fetchone()
            if other is not None:
                raise self._foreign(*other)
            row = self._execute(connection, _CLAIM).fetchone()
            if row is None:
                raise self._fenced()
            self._execute(connection, _END_OTHER_SHARDS)
        return _stored(row)

    def begin(self, connection: Connection) -> StoredOffset | None:
        """Begin a transaction with a lock on the stored offset, and return that.

        Raises:
            psycopg.Error: It cannot be read.
            RouteFault: Another writer has claimed it, or the database has lost a commit.
        """
        with connection.pipeline():
            connection.execute("BEGIN")
            cursor = self._execute(connection, _FENCE)
        row = cursor.fetchone()
        if row is None:
            raise self._fenced()
        found = _stored(row)
        self._check_kept(found)
        return found

    def store(self, connection: Connection, stored: StoredOffset) -> None:
        """Store an offset in the transaction."""
        record = [stored.log_id, stored.epoch, stored.generation, stored.shards, stored.offset]
        place = [self._values[name] for name in ("owner", "route", "shard")]
        connection.execute(_STORE.format(table=self._table), [*record, stored.run, *place])
        self._sent = stored

    def note_commit(self) -> None:
        """Note that the offset that was stored last is committed."""
        self._committed = self._sent

    def _check_kept(self, found: StoredOffset | None) -> None:
        """Check that what this writer has committed is still there."""
        last = self._committed
        if last is None:
            return
        if found is not None and (last.generation, last.offset) <= (found.generation, found.offset):
            return
        place = "none" if found is None else str(found.offset)
        raise RouteFault(
            f"{self.name}: the database has lost what it had committed: its stored offset is "
            f"{place}, and was {last.offset}, as after a failover to a standby that was behind; "
            "resume the route, and replay it from there"
        )

    def _execute(self, connection: Connection, text: str) -> psycopg.Cursor[Any]:
        return connection.execute(text.format(table=self._table), self._values)

    def _foreign(self, owner: str, log_id: str, updated_at: datetime) -> RouteFault:
        route = self._context.route
        remedy = f"DELETE FROM {self.name} WHERE owner = '{owner}' AND route = '{route}'"  # noqa: S608 - a hint
        return RouteFault(
            f"{self.name} holds the progress of route {route} of another log ({log_id}, written "
            f"{updated_at:%Y-%m-%d %H:%M}): two logs would overwrite each other's rows; name "
            f"another route, or another table in progress, or if that log is gone: {remedy}"
        )

    def _fenced(self) -> RouteFault:
        context = self._context
        return RouteFault(
            f"{self.name}: fenced: another writer of route {context.route}, shard {context.shard} "
            f"has taken over from this one (epoch {context.epoch}): another engine has opened the "
            "log since"
        )


def progress_ddl(name: TableName) -> str:
    """Return the statement that creates the table *name* of stored offsets."""
    return _TABLE.format(table=name.identifier.as_string())


def exists(connection: Connection, name: str) -> bool:
    """Return whether there is a relation of this name."""
    row = connection.execute("SELECT pg_catalog.to_regclass(%s) IS NOT NULL", [name]).fetchone()
    return bool(row and row[0])


def _stored(row: tuple[Any, ...]) -> StoredOffset | None:
    return None if row[0] is None else StoredOffset(*row)
