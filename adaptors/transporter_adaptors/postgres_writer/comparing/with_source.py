"""Comparison of the sink with the databases of the route's readers, while both change.

Ranges are read without any relation between the two servers, so a row that differs there is only a
candidate. It is decided by looking at it again:

1. The version of its row is read at the sink (``xmin``, ``ctid``), then the row at the source, and
   then the end of the source's log.
2. The pipeline is waited for: until the reader has logged everything up to that end, and the route
   has delivered everything that is logged by then.
3. The row is read at the sink. If it is as at the source, the candidate is dropped.
4. The version of the row is read at the source once more. If it is the same, the row has not
   changed since 1, so the sink must have it: it is a difference. A row that the source does not
   have has no version. Then it is a difference if the version at the sink is that of 1. The sink
   has passed the moment at which the row was not there, and any change would have made another
   version.

Everything else is looked at again until the time for it is over, and is undecided then. Without a
running engine nothing is waited for, and a change that is not delivered is a difference.

The candidates of all tables are decided together, because a reader whose source is idle logs its
position once a minute.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final, NamedTuple

from transporter.adaptor import Finding
from transporter.comparison import ComparedTable, RowDifference, UndecidedRow
from transporter.errors import ActionRefused
from transporter_adaptors.postgres_cdc.position import Position
from transporter_adaptors.postgres_cdc.reader import CdcReader
from transporter_adaptors.postgres_writer.comparing.key_ranges import Ranges
from transporter_adaptors.postgres_writer.comparing.row_check import VERSION, CheckedRow, RowCheck
from transporter_adaptors.postgres_writer.comparing.source_tables import (
    IS_CHANGED,
    SourceRows,
    open_source,
)
from transporter_adaptors.postgres_writer.comparing.table_side import TableSide

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transporter.comparison import ComparedRoute, CompareOptions
    from transporter_adaptors.postgres.table import TableName
    from transporter_adaptors.postgres_writer.comparing.key_ranges import Bound, Digest, Key
    from transporter_adaptors.postgres_writer.comparing.sink_tables import SinkTables
    from transporter_adaptors.postgres_writer.comparing.source_tables import Source, SourceTable

_MOST: Final = 500
"""Rows after which all are decided."""
_POLL: Final = 0.1
_CHECK: Final = 0.5
"""Seconds between two looks at rows whose delivery is waited for."""
_TRIES: Final = 3
"""Attempts at a table whose columns change meanwhile."""


def cdc_readers(route: ComparedRoute) -> dict[str, CdcReader]:
    """Return the readers whose database has the expected rows."""
    return {name: each for name, each in route.readers.items() if isinstance(each, CdcReader)}


def compare_with_source(
    route: ComparedRoute, sink: SinkTables, options: CompareOptions
) -> Iterator[ComparedTable | RowDifference | UndecidedRow | Finding]:
    """Yield the rows of the sink that are not as at the source, and each compared table."""
    with ExitStack() as stack:
        pairs = _find_tables(route, sink, options, stack)
        if not pairs:
            raise ActionRefused(
                "no table of the source is delivered by this route, or the readers have not read "
                "any yet"
            )
        pool = stack.enter_context(ThreadPoolExecutor(1))
        candidates = _Candidates(route, options)
        compared = []
        for source, table, name in pairs:
            if table.problem:
                text = f"{table.name} is not compared: {table.problem}"
                yield Finding(f"{text}; leave it out by --table, which names others", "problem")
                continue
            one = _TableComparison(route, sink, options, source, table, name)
            for keys in one.search(pool):
                yield from candidates.add(one, keys)
            compared.append(one.result)
        yield from candidates.decide()
        yield from compared


def _find_tables(
    route: ComparedRoute, sink: SinkTables, options: CompareOptions, stack: ExitStack
) -> list[tuple[Source, SourceTable, TableName]]:
    """Return the wanted tables of the source, each with the name of the sink's table."""
    found = []
    for name, reader in cdc_readers(route).items():
        source = stack.enter_context(open_source(name, reader.config))
        found += [
            (source, table, sink.config.table_of(table.namespace))
            for table in source.find_tables(route)
        ]
    targets = [str(target) for _, _, target in found]
    twice = next((each for each in targets if targets.count(each) > 1), None)
    if twice is not None:
        raise ActionRefused(
            f"several tables of the source are written to {twice}: compare with the log"
        )
    if unknown := sorted({*options.tables} - {*targets}):
        raise ActionRefused(
            f"the route does not write to {', '.join(unknown)}; it writes to "
            f"{', '.join(sorted(targets))}"
        )
    return [each for each in found if not options.tables or str(each[2]) in options.tables]


class _Candidates:
    """Rows that may differ, some hundred of which are decided together."""

    def __init__(self, route: ComparedRoute, options: CompareOptions) -> None:
        self._route, self._options = route, options
        self._keys: dict[_TableComparison, set[Key]] = {}

    def add(
        self, table: _TableComparison, keys: set[Key]
    ) -> Iterator[RowDifference | UndecidedRow]:
        """Add rows of *table*. If there are many now, yield those that differ."""
        self._keys.setdefault(table, set()).update(keys - table.reported)
        if sum(map(len, self._keys.values())) >= _MOST:
            yield from self.decide()

    def decide(self) -> Iterator[RowDifference | UndecidedRow]:
        """Yield the rows that differ, and those that stay undecided."""
        ends = monotonic() + self._options.patience
        is_late = False
        while not is_late and (waiting := {t: k for t, k in self._keys.items() if k}):
            looks = {table: table.look(sorted(keys)) for table, keys in waiting.items()}
            is_late = not self._await_delivery(looks, ends)
            for table, look in looks.items():
                self._keys[table] = set()
                for key, difference in table.look_again(look):
                    if difference is None or is_late:
                        self._keys[table].add(key)
                    else:
                        yield difference
        for table, keys in self._keys.items():
            for key in sorted(keys):
                yield table.undecided(key)
        self._keys.clear()

    def _await_delivery(self, looks: dict[_TableComparison, _Look], ends: float) -> bool:
        """Wait until everything is delivered that is committed by now, or all rows are equal.

        Rows that become equal meanwhile are removed from *looks*.

        Returns:
            Whether that is so, or no engine runs that would deliver it.
        """
        deliveries = [_Delivery(self._route, each) for each in {t.source for t in looks}]
        check_at = monotonic()
        while not all(each.is_over() for each in deliveries):
            if monotonic() >= ends:
                return False
            if monotonic() >= check_at:
                for table, look in looks.items():
                    looks[table] = table.leave_out_equal(look)
                check_at = monotonic() + _CHECK
                if not any(look.keys for look in looks.values()):
                    return True
            sleep(_POLL)
        return True


class _Delivery:
    """The delivery of everything that is committed at a source now."""

    def __init__(self, route: ComparedRoute, source: Source) -> None:
        self._route, self._reader = route, source.reader
        self._lsn = source.read_lsn()
        self._offset: int | None = None

    def is_over(self) -> bool:
        """Return whether it is delivered, or no engine runs that would deliver it."""
        # Looked at first: an engine that ends meanwhile has delivered all that it could.
        is_running = self._route.is_running()
        if self._offset is None and self._logged_lsn() >= self._lsn:
            self._offset = self._route.last_offset()
        if self._offset is not None and self._route.progress().watermark >= self._offset:
            return True
        return not is_running

    def _logged_lsn(self) -> int:
        position = self._route.logged_reader(self._reader).position
        return 0 if position is None else Position.parse(position).at


class _Look(NamedTuple):
    """Rows as they were before the pipeline was waited for."""

    keys: Sequence[Key]
    expected: dict[Key, tuple[str, bytes]]
    """Version and JSON of the rows of the source."""
    found: dict[Key, str]
    """Versions of the rows of the sink."""


class _TableComparison:
    """The comparison of one table."""

    def __init__(
        self,
        route: ComparedRoute,
        sink: SinkTables,
        options: CompareOptions,
        source: Source,
        table: SourceTable,
        target: TableName,
    ) -> None:
        self._route, self._sink, self._options = route, sink, options
        self.source, self._table, self._name = source, table, target
        self.reported: set[Key] = set()
        """Rows that were decided."""
        self._count = 0
        self._rows: SourceRows
        self._check: RowCheck

    @property
    def result(self) -> ComparedTable:
        """The table as it is reported."""
        return ComparedTable(str(self._name), str(self._table.name), self._count)

    def search(self, pool: ThreadPoolExecutor) -> Iterator[set[Key]]:
        """Yield keys of rows that may differ. Columns that change begin it again."""
        if self._is_to_be_created():
            return
        self._look_up()
        for attempt in range(_TRIES):
            try:
                yield from self._search(pool)
            except IS_CHANGED:
                if attempt == _TRIES - 1:
                    raise
                self._look_up_again()
            else:
                return

    def _is_to_be_created(self) -> bool:
        """Return whether the first row of a table that is empty creates it in the sink."""
        if self._sink.config.evolve != "create" or self._sink.catalog.find(self._name):
            return False
        query = f"SELECT FROM {self._table.name.identifier.as_string()} LIMIT 1"
        return not self.source.connection.execute(query).fetchall()

    def _search(self, pool: ThreadPoolExecutor) -> Iterator[set[Key]]:
        expected, self._count = self._rows.side, 0
        found = TableSide(self._sink.connection, self._rows.target)
        estimate = expected.estimate_rows()

        def digest_both(low: Bound, high: Bound) -> tuple[Digest, Digest]:
            other = pool.submit(found.digest, low, high)
            try:
                mine = expected.digest(low, high)
            finally:
                theirs = other.result()
            return mine, theirs

        for rows, keys in Ranges(expected, found, digest_both).find():
            self._count += rows
            self._options.on_progress(str(self._name), self._count, estimate)
            yield keys

    def look(self, keys: Sequence[Key]) -> _Look:
        """Read rows at both servers, in the order that :meth:`look_again` relies on."""
        try:
            found = self._side.fetch_by_keys(VERSION, keys)
            expected = self._rows.fetch(keys)
        except IS_CHANGED:
            self._look_up_again()
            found, expected = self._side.fetch_by_keys(VERSION, keys), self._rows.fetch(keys)
        return _Look(keys, expected, {key: row[0] for key, row in found.items()})

    def leave_out_equal(self, look: _Look) -> _Look:
        """Return *look* without the rows that are equal now."""
        if not look.keys:
            return look
        now = self.look(look.keys)
        looked = self._look_at_sink(now)
        keys = [key for key in now.keys if not _is_fine(now.expected.get(key), looked[key])]
        return look._replace(keys=keys)

    def look_again(self, look: _Look) -> Iterator[tuple[Key, RowDifference | None]]:
        """Yield the rows that are not equal, with the difference of those that did not change."""
        looked = self._look_at_sink(look)
        wrong = [key for key in look.keys if not _is_fine(look.expected.get(key), looked[key])]
        now = self._rows.fetch_versions(wrong) if wrong else {}
        for key in wrong:
            row, checked = look.expected.get(key), looked[key]
            is_stable = (row and row[0]) == now.get(key)
            if row is None:
                is_stable = is_stable and look.found.get(key) == checked.version
            if is_stable:
                self.reported.add(key)
                yield key, self._difference(key, checked, is_expected=row is not None)
            else:
                yield key, None

    def undecided(self, key: Key) -> UndecidedRow:
        """Return a row as undecided."""
        self.reported.add(key)
        return UndecidedRow(str(self._name), self._key_fields(key))

    @property
    def _side(self) -> TableSide:
        return TableSide(self._sink.connection, self._rows.target)

    def _look_up_again(self) -> None:
        """Read the columns of both tables."""
        found = (each for each in self.source.find_tables(self._route))
        table = next((each for each in found if each.name == self._table.name), None)
        if table is None:
            raise ActionRefused(f"{self._table.name} is gone from the source")
        self._table = table
        self._look_up()

    def _look_up(self) -> None:
        """Read the columns of the sink's table."""
        self._sink.catalog.forget()
        target = self._sink.find(self._name)
        self._rows = SourceRows(self.source, self._table, self._sink, target)
        self._check = RowCheck(
            self._sink, target, self._rows.target, with_values=self._options.with_values
        )

    def _look_at_sink(self, look: _Look) -> dict[Key, CheckedRow]:
        """Return the rows of the sink beside the expected ones."""
        # The sink may have got a column meanwhile.
        self._look_up()
        rows = {key: look.expected[key][1] for key in look.keys if key in look.expected}
        checked = self._check.check(rows)
        others = [key for key in look.keys if key not in look.expected]
        if others and self._sink.config.delete != "ignore":
            texts = self._check.texts() if self._options.with_values else "NULL"
            found = self._side.fetch_by_keys(f"{VERSION}, {texts}", others)
            for key, (version, values) in found.items():
                names = self._rows.target.columns
                present = None if values is None else dict(zip(names, values, strict=True))
                checked[key] = CheckedRow(version, found=present)
        return {key: checked.get(key, CheckedRow(None)) for key in look.keys}

    def _difference(self, key: Key, checked: CheckedRow, *, is_expected: bool) -> RowDifference:
        name, fields = str(self._name), self._key_fields(key)
        if not is_expected:
            return RowDifference(name, "extra", fields, found=checked.found)
        return checked.difference(name, fields)

    def _key_fields(self, key: Key) -> dict[str, str]:
        return dict(zip(self._rows.target.key, key, strict=True))


def _is_fine(expected: tuple[str, bytes] | None, checked: CheckedRow) -> bool:
    return checked.version is None if expected is None else checked.is_equal
