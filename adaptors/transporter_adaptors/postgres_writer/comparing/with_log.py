"""Comparison of the sink with the last state of each key in the log, while both grow.

The sink has the offset up to which every entry is in its tables, in the same transactions as the
rows. So a snapshot of the sink shows rows together with the offset that they belong to. For each
part of a table the state of the log is brought to exactly that offset before the rows are
compared, and a row that differs is a difference at once. Nothing is waited for.

With ``parallelism`` each shard has an offset of its own. Rows that entries between the lowest and
the highest of them change are looked at again, until a snapshot has no such entry.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from hashlib import sha256
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

import psycopg

from transporter.adaptor import Finding
from transporter.comparison import ComparedTable, RowDifference, UndecidedRow
from transporter.errors import ActionRefused
from transporter_adaptors.postgres_writer.comparing.log_state import LogState
from transporter_adaptors.postgres_writer.comparing.row_check import VERSION, RowCheck
from transporter_adaptors.postgres_writer.comparing.table_side import TableSide
from transporter_adaptors.postgres_writer.failures import is_data
from transporter_adaptors.postgres_writer.session import RawJson
from transporter_adaptors.postgres_writer.statements import quote, typed_columns
from transporter_adaptors.postgres_writer.table import encode_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transporter.comparison import ComparedRoute, CompareOptions
    from transporter_adaptors.postgres_writer.comparing.key_ranges import Bound, Key
    from transporter_adaptors.postgres_writer.comparing.log_state import LoggedRow, Values
    from transporter_adaptors.postgres_writer.comparing.sink_tables import SinkTables
    from transporter_adaptors.postgres_writer.comparing.table_side import ComparedColumns
    from transporter_adaptors.postgres_writer.table import Table

_CHUNK: Final = 5000
"""Rows of the sink that are compared in one snapshot."""
_LOOKED_UP: Final = 500
"""Rows that are looked up by their keys together."""
_PAUSE: Final = 0.2
_SNAPSHOT: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


def compare_with_log(
    route: ComparedRoute, sink: SinkTables, options: CompareOptions
) -> Iterator[ComparedTable | RowDifference | UndecidedRow | Finding]:
    """Yield the rows of the sink that are not as in the log, and each compared table."""
    if not route.is_whole:
        yield Finding(
            "the log has lost its oldest entries by retention, so rows that only the sink has are "
            "not reported",
            "warning",
        )
    with closing(_LogComparison(route, sink, options)) as comparison:
        yield from comparison.run()


class _Snapshot:
    """A transaction of the sink, with the offsets that its rows belong to.

    Every entry up to ``low`` is in its rows, and none behind ``high``. ``unsettled`` are the keys
    of the entries in between, by table.
    """

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        self.unsettled: dict[str, set[Key]] = {}

    def is_settled(self, table: Table, key: Key) -> bool:
        """Return whether the row belongs to ``low``."""
        keys = self.unsettled.get(str(table.name), set())
        return key not in keys and () not in keys


class _LogComparison:
    """The comparison of all tables of a route."""

    def __init__(self, route: ComparedRoute, sink: SinkTables, options: CompareOptions) -> None:
        self.route, self.sink, self.options = route, sink, options
        self._tables: dict[str, Table | None] = {}
        self._begin = -1
        self.state = LogState(sink.config, self._find_table, self._find_keys)

    def close(self) -> None:
        """Remove the state."""
        self.state.close()

    def run(self) -> Iterator[ComparedTable | RowDifference | UndecidedRow | Finding]:
        """Yield the rows that differ, and each table."""
        # Without a transaction, because this may take long.
        self._advance(self._offsets()[0])
        tables = {str(table.name): table for table in self._tables.values() if table is not None}
        if unknown := sorted({*self.options.tables} - self._names(tables)):
            raise ActionRefused(f"the log has no row of {', '.join(unknown)}")
        for name, table in sorted(tables.items()):
            if not self.options.tables or {name, *self._namesakes(table)} & {*self.options.tables}:
                yield from self._compare(table)
        if self.state.passed:
            yield Finding(
                f"{self.state.passed} entries are not rows, so the writer refuses them", "warning"
            )

    def _names(self, tables: dict[str, Table]) -> set[str]:
        return {*tables, *(name for table in tables.values() for name in self._namesakes(table))}

    def _namesakes(self, table: Table) -> set[str]:
        """Return the names by which settings and entries call *table*."""
        return {
            str(self.sink.config.table_of(namespace))
            for namespace, found in self._tables.items()
            if found is table
        }

    def _compare(self, table: Table) -> Iterator[ComparedTable | RowDifference | UndecidedRow]:
        compared = self.sink.compared(table, table.key, self.sink.writable_columns(table))
        check = RowCheck(self.sink, table, compared, with_values=self.options.with_values)
        one = _LoggedTable(self, table, compared, check)
        yield from one.run()

    @contextmanager
    def snapshot(self) -> Iterator[_Snapshot]:
        """Yield a snapshot of the sink, with the state of the log as of then."""
        self._advance(self._offsets()[0])
        connection = self.sink.connection
        connection.execute(_SNAPSHOT)
        try:
            found = _Snapshot(*self._offsets())
            self._advance(found.low)
            for _, batch in self.route.read(found.low + 1, found.high):
                for name, keys in self.state.keys_of(batch).items():
                    found.unsettled.setdefault(name, set()).update(keys)
            yield found
        finally:
            if not connection.closed:
                connection.execute("ROLLBACK")

    def _offsets(self) -> tuple[int, int]:
        """Return the offset up to which every entry is in the sink, and the last one of any.

        The route's own offsets are read first, so they are not ahead of the sink's.
        """
        progress = self.route.progress()
        if progress.is_replaying:
            raise ActionRefused(
                f"route {self.route.name} replays, so rows may have older values: try again "
                "when that has ended"
            )
        stored = self.sink.stored_offsets(self.route.name, self.route.log_id)
        offsets = [
            offset for generation, _, offset in stored.values() if generation == progress.generation
        ]
        shards = max((shards for _, shards, _ in stored.values()), default=0)
        low = min(offsets) if offsets and len(offsets) == shards else -1
        # Only the watermark covers filtered entries, and those before a replay.
        low = max(low, progress.watermark)
        return low, max([low, *offsets])

    def _advance(self, through: int) -> None:
        """Bring the state of the log to the offset *through*."""
        begin = self.state.offset
        if through <= begin:
            return
        for at, batch in self.route.read(begin + 1, through):
            self.state.apply(at, batch)
            self.options.on_progress("log", at - begin, through - begin)
        self.state.offset = through

    def _find_table(self, namespace: str) -> Table | None:
        if namespace not in self._tables:
            self._tables[namespace] = self.sink.find(self.sink.config.table_of(namespace))
        return self._tables[namespace]

    def _find_keys(self, table: Table, keys: Sequence[Values]) -> list[Key | None]:
        if table.has_clear_key:
            return [_clear_key(table, values) for values in keys]
        return self._ask_for_keys(table, keys)

    def _ask_for_keys(self, table: Table, keys: Sequence[Values]) -> list[Key | None]:
        """Return the texts of keys whose form only the server knows."""
        if not keys:
            return []
        try:
            return self._convert_keys(table, keys)
        except psycopg.Error as error:
            if not is_data(error):
                raise
        if len(keys) == 1:
            return [None]
        half = len(keys) // 2
        return self._ask_for_keys(table, keys[:half]) + self._ask_for_keys(table, keys[half:])

    def _convert_keys(self, table: Table, keys: Sequence[Values]) -> list[Key | None]:
        types = self.sink.full_types(table)
        texts = ", ".join(
            f"format('%%s', (r.{quote(name)})::{types[name].replace('%', '%%')})"
            for name in table.key
        )
        query = (
            f"SELECT ARRAY[{texts}] FROM pg_catalog.json_array_elements(%s) "  # noqa: S608 - quoted
            "WITH ORDINALITY AS e (doc, n) CROSS JOIN LATERAL pg_catalog.json_to_record(e.doc) "
            f"AS r ({typed_columns(table, table.key)}) ORDER BY e.n"
        )
        documents = [encode_json(dict(zip(table.key, each, strict=True))) for each in keys]
        rows = RawJson(f"[{','.join(documents)}]".encode())
        # A failure must not end a transaction around it.
        with self.sink.connection.transaction():
            found = self.sink.connection.execute(query, [rows]).fetchall()
        return [tuple(key) for (key,) in found]


def _clear_key(table: Table, values: Values) -> Key | None:
    try:
        return table.key_texts(values)
    except ValueError:
        return None


class _LoggedTable:
    """The comparison of one table."""

    def __init__(
        self, whole: _LogComparison, table: Table, compared: ComparedColumns, check: RowCheck
    ) -> None:
        self._whole, self._table, self._compared, self._check = whole, table, compared, check
        self._side = TableSide(whole.sink.connection, compared)
        self._later: set[Key] = set()
        """Rows to look at again, in a later snapshot."""

    def run(self) -> Iterator[ComparedTable | RowDifference | UndecidedRow]:
        """Yield the rows that differ, and then the table."""
        low: Bound = None
        rows, total = 0, self._side.estimate_rows()
        while True:
            with self._whole.snapshot() as snapshot:
                found = self._read_rows(low)
                yield from self._compare(snapshot, found)
            rows += len(found)
            self._whole.options.on_progress(str(self._table.name), rows, total)
            if len(found) < _CHUNK:
                break
            low = [*found][-1]
        yield from self._compare_unseen()
        yield from self._look_again()
        yield ComparedTable(str(self._table.name), "log", self._whole.state.count(self._table))

    def _read_rows(self, low: Bound) -> dict[Key, bytes]:
        """Return the hash of the JSON of each of the next rows, by key and in its order."""
        columns = ", ".join(f"o.{quote(name)}" for name in self._compared.columns)
        where = [*self._compared.conditions]
        if low is not None:
            where.append(f"({self._compared.keys}) > {self._compared.key_parameters}")
        condition = f"WHERE {' AND '.join(where)}" if where else ""
        query = (
            f"SELECT {self._compared.key_texts}, "  # noqa: S608 - quoted
            f"sha256(convert_to(row_to_json(x.*)::text, 'UTF8')) FROM {self._compared.source} "
            f"CROSS JOIN LATERAL (SELECT {columns}) x {condition} "
            f"ORDER BY {self._compared.keys} LIMIT {_CHUNK}"
        )
        return {tuple(key): digest for key, digest in self._side.fetch(query, low or ())}

    def _compare(self, snapshot: _Snapshot, found: dict[Key, bytes]) -> Iterator[RowDifference]:
        logged = self._whole.state.find(self._table, found)
        differing = {
            key: logged.get(key)
            for key, digest in found.items()
            if not _is_same(logged.get(key), digest)
        }
        yield from self._decide(snapshot, differing)

    def _compare_unseen(self) -> Iterator[RowDifference]:
        """Yield rows that only the log has. Some may have come to the sink meanwhile."""
        while keys := self._whole.state.take_unseen(self._table, _LOOKED_UP):
            with self._whole.snapshot() as snapshot:
                logged = self._whole.state.find(self._table, keys)
                yield from self._decide(snapshot, {key: logged.get(key) for key in keys})

    def _look_again(self) -> Iterator[RowDifference | UndecidedRow]:
        ends = monotonic() + self._whole.options.patience
        while self._later and monotonic() < ends:
            sleep(_PAUSE)
            keys, self._later = sorted(self._later), set()
            for begin in range(0, len(keys), _LOOKED_UP):
                some = keys[begin : begin + _LOOKED_UP]
                with self._whole.snapshot() as snapshot:
                    logged = self._whole.state.find(self._table, some)
                    yield from self._decide(snapshot, {key: logged.get(key) for key in some})
        for key in sorted(self._later):
            yield UndecidedRow(str(self._table.name), self._key_fields(key))

    def _decide(
        self, snapshot: _Snapshot, rows: dict[Key, LoggedRow | None]
    ) -> Iterator[RowDifference]:
        """Yield those of *rows*, with their states in the log, that differ in *snapshot*."""
        settled = {key: row for key, row in rows.items() if snapshot.is_settled(self._table, key)}
        self._later |= rows.keys() - settled.keys()
        documents = {
            key: row.data
            for key, row in settled.items()
            if row is not None and row.data is not None
        }
        checked = self._check.check(documents)
        for key, result in checked.items():
            if not result.is_equal:
                yield result.difference(str(self._table.name), self._key_fields(key))
        absent = [key for key in settled if key not in documents]
        if absent and self._whole.sink.config.delete != "ignore":
            yield from self._find_extra(absent, settled)

    def _find_extra(
        self, keys: Sequence[Key], rows: dict[Key, LoggedRow | None]
    ) -> Iterator[RowDifference]:
        """Yield the rows of the sink that the log has not, or has a delete of."""
        with_values = self._whole.options.with_values
        texts = self._check.texts() if with_values else "NULL"
        found = self._side.fetch_by_keys(f"{VERSION}, {texts}", keys)
        for key, (_, values) in found.items():
            if rows[key] is None and not self._whole.route.is_whole:
                continue  # Its entry may be among those that are gone.
            names = self._compared.columns
            present = dict(zip(names, values, strict=True)) if values is not None else None
            yield RowDifference(
                str(self._table.name), "extra", self._key_fields(key), found=present
            )

    def _key_fields(self, key: Key) -> dict[str, str]:
        return dict(zip(self._table.key, key, strict=True))


def _is_same(row: LoggedRow | None, digest: bytes) -> bool:
    return row is not None and row.data is not None and sha256(row.data).digest() == digest
