"""Writer of entries to tables of PostgreSQL, together with their offset, and checks of these."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from typing import TYPE_CHECKING, ClassVar, Final

import psycopg

from transporter.adaptor import Finding
from transporter.errors import Rejected, RouteFault, SinkError, SinkTimeout, SinkUnavailable
from transporter_adaptors.postgres.session import server_text
from transporter_adaptors.postgres_writer.append_mode import Appends, check_columns
from transporter_adaptors.postgres_writer.apply import Transactions
from transporter_adaptors.postgres_writer.catalog import Catalog
from transporter_adaptors.postgres_writer.config import PostgresWriterConfig, split_name
from transporter_adaptors.postgres_writer.evolution import check_schema
from transporter_adaptors.postgres_writer.failures import is_stale, is_too_large, sink_error
from transporter_adaptors.postgres_writer.progress import Progress, exists, progress_ddl
from transporter_adaptors.postgres_writer.session import connect
from transporter_adaptors.postgres_writer.upsert_mode import Upserts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from transporter.adaptor import Ack, AdaptorConfig, Entries, StoredOffset, WriterContext
    from transporter.comparison import ComparedRoute, CompareOptions, Result
    from transporter.message import Message
    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres.table import TableName
    from transporter_adaptors.postgres_writer.guilty import Failure
    from transporter_adaptors.postgres_writer.table import Table

_GROWTH: Final = 4
"""Factor by which parts of a slice grow after one that succeeded."""
_SMALLEST: Final = 16
_LARGEST: Final = 100_000
_CORRECTED: Final = 1.0
"""Seconds within which no operator corrects a table because of an error."""
_PROBE_SECONDS: Final = 10.0
_MAY_CREATE: Final = """
SELECT coalesce(pg_catalog.has_schema_privilege(coalesce(%s, current_schema()), 'CREATE'), false)
"""
_PROGRESS_RIGHTS: Final = """
SELECT bool_and(pg_catalog.has_table_privilege(%s, right_name))
FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) AS right_name
"""


class PostgresWriter:
    """Writer that keeps tables as the entries describe them.

    The changes of a slice and the offset of its last entry are one transaction, in which the
    stored offset is locked first. So an entry is in the tables if and only if the offset covers
    it, and a writer that was replaced changes nothing any more.

    Not promised: that other sessions see the transactions of the source one by one. Not
    thread-safe.
    """

    Config: ClassVar[type[AdaptorConfig]] = PostgresWriterConfig

    def __init__(self, config: PostgresWriterConfig) -> None:
        """Keep *config*. :meth:`open` connects."""
        self._config = config
        self._context: WriterContext
        self._progress: Progress
        self._connection: Connection | None = None
        self._catalog: Catalog
        self._has_failed = False
        self._part: int | None = None
        """Maximum entries of a transaction, after failures of larger ones."""

    def open(self, context: WriterContext) -> StoredOffset | None:
        """Connect, fence earlier writers, and return the offset that the database stores.

        Raises:
            SinkUnavailable: The database cannot be reached, or is a standby.
            RouteFault: A right or a table is missing, or another writer has taken over.
        """
        if context.shards > 1:
            self._check_shards()
        # The errors that end a pipeline are raised. psycopg warns of them, too.
        logging.getLogger("psycopg").setLevel(logging.ERROR)
        self._context = context
        self._progress = Progress(self._config.progress, context)
        connection = self._connect()
        try:
            for name in self._config.fixed_tables:
                if self._config.evolve != "create" or self._catalog.find(name):
                    _check_table(self._catalog, name, self._config)
            self._progress.create(connection)
            return self._progress.claim(connection)
        except psycopg.Error as error:
            raise sink_error(error, f"cannot open {self._progress.name}") from error

    def write(self, batch: Entries, ack: Ack) -> None:
        """Commit *batch*, or the entries before the first one that cannot be applied."""
        if not len(batch):
            ack.all()
            return
        try:
            failure = self._write(batch, ack)
        except psycopg.Error as error:
            if is_too_large(error):
                self._part = max(1, min(self._part or len(batch), len(batch)) // 2)
            ack.fail(sink_error(error, "cannot write to the database"))
            self._close_broken()
        except SinkError as error:
            ack.fail(error)
        else:
            if failure is not None:
                ack.fail(failure, failure.offset)

    def close(self) -> None:
        """Close the connection. Safe to call twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def probe(self) -> Iterable[Finding]:
        """Check the server, the table of offsets, and the tables that are known by now."""
        return _probe_target(self._config)

    def probe_tables(self, entries: Iterable[Message]) -> Iterable[Finding]:
        """Check whether the tables that *entries* describe can be created or added to."""
        return _probe_tables(self._config, entries)

    def compare(self, route: ComparedRoute, options: CompareOptions) -> Iterator[Result | Finding]:
        """Yield rows of the tables that are not as at the source, or as in the log."""
        # An engine does without these modules.
        from transporter_adaptors.postgres_writer.comparing.comparison import (  # noqa: PLC0415
            compare_sink,
        )

        return compare_sink(self._config, route, options)

    def _check_shards(self) -> None:
        """Check that no setting needs entries of all shards in one order."""
        config = self._config
        ordered = {
            "truncate: apply": config.mode == "upsert" and config.truncate == "apply",
            f"evolve: {config.evolve}": config.evolve != "none",
        }
        for setting in (name for name, is_set in ordered.items() if is_set):
            raise RouteFault(
                f"{setting} cannot be used with parallelism, because the other shards do not wait "
                "for such an entry: change that setting, or set parallelism to 1"
            )

    def _connect(self) -> Connection:
        if self._connection is not None and self._connection.closed:
            self.close()
        if self._connection is None:
            self._connection = connect(self._config, self._context.deadline)
            self._catalog = Catalog(self._connection, self._config)
        return self._connection

    def _close_broken(self) -> None:
        if self._connection is not None and self._connection.broken:
            self.close()

    def _write(self, batch: Entries, ack: Ack) -> Rejected | None:
        """Commit parts of *batch*, ack each, and return the error of the first bad entry."""
        connection = self._connect()
        self._look_again(batch)
        transactions = Transactions(connection, self._progress, self._context)
        kind = Upserts if self._config.mode == "upsert" else Appends
        work = kind(connection, self._config, self._catalog, batch)
        offsets, begin = work.offsets, 0
        # Parts begin in the first half of the time. The second half is for the last one's end.
        ends = time.monotonic() + self._context.deadline / 2
        while begin < len(offsets):
            started = time.monotonic()
            if started > ends:
                raise SinkTimeout("the slice was not written in full within the time for it")
            end = begin + (self._part or len(offsets))
            end = work.units.end_near(begin, end) if end < len(offsets) else len(offsets)
            done, failure = self._apply(transactions, work, begin, end, batch.generation, ends)
            ack(offsets[begin:done])
            if failure is None and done < end:  # The time is over.
                self._part = max(1, (end - begin) // _GROWTH)
            else:
                self._adapt(done - begin, failure, time.monotonic() - started)
            self._has_failed |= failure is not None
            if failure is not None and done and work.may_continue(done):
                raise SinkUnavailable(f"{failure.problem}; it is tried with the entries behind it")
            if failure is not None:
                return Rejected(failure.problem, offsets[done])
            begin = done
        return None

    def _look_again(self, batch: Entries) -> None:
        """Read the tables again, where someone may have corrected one because of a bad entry.

        That are the retry of a parked entry, and everything that comes a while after a failure.
        """
        if batch.generation < 0 or (self._has_failed and self._catalog.age > _CORRECTED):
            self._catalog.forget()
            self._has_failed = False

    def _apply(
        self,
        transactions: Transactions,
        work: Upserts | Appends,
        begin: int,
        end: int,
        generation: int,
        until: float,
    ) -> tuple[int, Failure | None]:
        """Apply a part of a slice. If a table has changed meanwhile, look at it again."""
        try:
            return transactions.apply(work, begin, end, generation, until)
        except psycopg.Error as error:
            if not is_stale(error):
                raise
            self._catalog.forget()
            return transactions.apply(work, begin, end, generation, until)

    def _adapt(self, good: int, failure: Failure | None, seconds: float) -> None:
        """Adapt the size of parts: where bad entries are dense, large parts are in vain."""
        if failure is not None:
            self._part = max(_SMALLEST, 2 * good)
        elif self._part is not None and _GROWTH * seconds < self._context.deadline / 2:
            self._part = self._part * _GROWTH if self._part < _LARGEST else None


def _check_table(catalog: Catalog, name: TableName, config: PostgresWriterConfig) -> Table:
    """Return the table *name* if entries can be written to it in the mode of *config*.

    Raises:
        psycopg.Error: The catalog cannot be read.
        RouteFault: They cannot.
    """
    table = catalog.table(name)
    if config.mode == "append":
        check_columns(table)
    return table


def _probe_target(config: PostgresWriterConfig) -> Iterator[Finding]:
    """Yield findings about the server, the table of offsets, and the tables known by now."""
    with closing(connect(config, _PROBE_SECONDS)) as connection:
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


def _probe_progress(connection: Connection, config: PostgresWriterConfig) -> Finding:
    name = split_name(config.progress)
    if exists(connection, str(name)):
        row = connection.execute(_PROGRESS_RIGHTS, [str(name)]).fetchone()
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
        table = _check_table(catalog, name, config)
    except RouteFault as fault:
        return Finding(str(fault), "problem")
    key = f", and the key {', '.join(table.key)}" if table.key else ""
    return Finding(f"table {table.name}: has the rights that it needs{key}")


def _probe_tables(config: PostgresWriterConfig, entries: Iterable[Message]) -> Iterator[Finding]:
    """Yield the problems that the tables described by *entries* would have at the target."""
    if config.evolve == "none" or not config.upserts:
        return
    creates = config.evolve == "create"
    with closing(connect(config, _PROBE_SECONDS)) as connection:
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
