"""SQL queries over a log, run by DuckDB inside this process.

DuckDB sees the log as an Arrow dataset. Each scan reads the log again, passes on the
columns that the query needs, and skips entries excluded by a condition on the offset. A
query reaches that table and nothing else: no file, no network, no setting.
"""

from __future__ import annotations

import signal
import socket
from contextlib import closing, contextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa
from pyarrow.dataset import Dataset, FileSystemDataset, IpcFileFormat, field
from pyarrow.fs import LocalFileSystem

from transporter.errors import ActionRefused, ConfigError
from transporter.table.cells import to_json_value
from transporter.table.options import TABLE
from transporter.table.plan import TablePart, plan_parts, split_offsets
from transporter.table.rows import Shape, read_rows, selection_of, typed_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyarrow.dataset import Expression

    from transporter.table.options import Options

_MEMORY: Final = "1GiB"
"""Memory limit of a query, which may run beside an engine. Larger sorts and groups use the disk."""
_FETCHED: Final = 1000
_KEYWORD: Final = 'near "offset"'
_QUOTED: Final = 'offset is a keyword of SQL: write "offset" in double quotes, or log.offset'


class QueryResult:
    """The result of a statement: its ``columns``, and its rows as they come."""

    def __init__(self, log: _LogDataset, cursor: duckdb.DuckDBPyConnection) -> None:
        """Take the result of the statement that *cursor* has run over *log*."""
        self._log, self._cursor = log, cursor
        self.columns = [column[0] for column in cursor.description or ()]

    def rows(self) -> Iterator[list[Any]]:
        """Yield the rows, with JSON values as cells.

        Raises:
            ActionRefused: DuckDB cannot continue.
            LogError: the log cannot be read.

        """
        while True:
            with _translate_errors(self._log):
                found = self._cursor.fetchmany(_FETCHED)
            if not found:
                return
            for row in found:
                yield [to_json_value(cell) for cell in row]


@contextmanager
def run_query(statement: str, options: Options) -> Iterator[QueryResult]:
    """Run one *statement* over the table ``log`` that *options* describe.

    Raises:
        ActionRefused: the statement is wrong.
        ConfigError: there is none, or more than one.
        LogError: the log cannot be read.

    """
    log = _LogDataset(options)
    with (
        TemporaryDirectory(prefix="transporter-query-") as scratch,
        closing(_connect(scratch)) as connection,
        _allow_interrupt(connection, log),
    ):
        connection.register(TABLE, log)
        with _translate_errors(log):
            if len(connection.extract_statements(statement)) != 1:
                raise ConfigError("give one SQL statement")
            answer = QueryResult(log, connection.execute(statement))
        yield answer


def _connect(scratch: str) -> duckdb.DuckDBPyConnection:
    """Return an in-memory database whose queries can reach only the folder *scratch*."""
    return duckdb.connect(
        config={
            "enable_external_access": "false",
            "temp_directory": scratch,
            "memory_limit": _MEMORY,
            "lock_configuration": "true",
        }
    )


@contextmanager
def _translate_errors(log: _LogDataset) -> Iterator[None]:
    """Raise failures of the log as they are, and refusals by DuckDB as :class:`ActionRefused`."""
    try:
        yield
    except Exception as error:
        if log.stopped:
            raise KeyboardInterrupt from None
        if log.failure is not None:
            raise log.failure from None
        if not isinstance(error, duckdb.Error):
            raise
        lines = [line for line in str(error).splitlines() if line.strip()]
        hint = [_QUOTED] if any(_KEYWORD in line for line in lines) else []
        raise ActionRefused("\n".join([*lines, *hint])) from error


@contextmanager
def _allow_interrupt(connection: duckdb.DuckDBPyConnection, log: _LogDataset) -> Iterator[None]:
    """Let Ctrl-C end a query, because Python would handle it only after DuckDB has returned."""
    waker, woken = socket.socketpair()
    waker.settimeout(0)  # signal.set_wakeup_fd() requires it

    def watch() -> None:
        if woken.recv(1):
            log.stopped = True
            connection.interrupt()

    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.SIG_IGN:
        # Python's own handler would raise anywhere, possibly inside a scan.
        signal.signal(signal.SIGINT, lambda *_: None)
    former = signal.set_wakeup_fd(waker.fileno())
    watcher = Thread(target=watch, name="query-interrupt")
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(former)
        signal.signal(signal.SIGINT, handler)
        waker.close()
        watcher.join()
        woken.close()


class _LogDataset(Dataset):  # type: ignore[misc] # pyarrow is untyped
    """The log as a dataset for DuckDB, which requires Arrow's type, a schema and a scanner.

    ``failure`` is the exception of the last read. No read continues once it is ``stopped``.
    """

    def __init__(self, options: Options) -> None:
        """Plan once, so that every scan of a query sees the same entries."""
        self._options = options
        self._selection = selection_of(options)
        self._parts = plan_parts(options, self._selection.bounds)
        known = typed_schema(options.text)
        self._shape = Shape(pa.schema(map(known.field, options.columns)), options.lenient)
        self.failure: Exception | None = None
        self.stopped = False

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return self._shape.schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: Expression | None = None,  # noqa: A002 - DuckDB's name
    ) -> _Scan:
        """Return a scan that passes on *columns* of the entries that match *filter*."""
        names = self.schema.names if columns is None else columns
        wanted = replace(self._shape, schema=pa.schema(map(self.schema.field, names)))
        batches = self._read_batches(_filter_shape(self._shape, wanted, filter), names, filter)
        return _Scan(pa.RecordBatchReader.from_batches(wanted.schema, batches))

    def _read_batches(
        self, shape: Shape, columns: Sequence[str], predicate: Expression | None
    ) -> Iterator[pa.RecordBatch]:
        try:
            for part in self._parts if predicate is None else self._narrow_parts(predicate):
                for batch in read_rows(self._options, part, self._selection, shape):
                    self._refuse_if_stopped()
                    kept = batch if predicate is None else batch.filter(predicate)
                    yield kept.select(columns)
        except Exception as error:
            # DuckDB turns the exception into text.
            self.failure = error
            raise

    def _refuse_if_stopped(self) -> None:
        if self.stopped:
            raise InterruptedError

    def _narrow_parts(self, predicate: Expression) -> list[TablePart]:
        """Return the parts of the log that *predicate* leaves by offset, to a MiB at both ends."""
        touched = _matching_parts(self._parts, self.schema, predicate)
        outer = touched[:1] + touched[1:][-1:]
        return [
            finer
            for part in touched
            for finer in (
                _matching_parts(
                    split_offsets(self._options.directory, *part, size=1), self.schema, predicate
                )
                if part in outer
                else [part]
            )
        ]


class _Scan:
    """One read of the log, as DuckDB requires it."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the record batches."""
        return self._reader


def _filter_shape(table: Shape, wanted: Shape, predicate: Expression | None) -> Shape:
    """Return the shape to evaluate a filter in: *wanted* if it has the columns, else *table*."""
    if predicate is not None:
        try:
            wanted.schema.empty_table().filter(predicate)
        except pa.ArrowInvalid:
            return table
    return wanted


def _matching_parts(
    parts: list[TablePart], schema: pa.Schema, predicate: Expression
) -> list[TablePart]:
    """Return the *parts* in which an offset may match, as Arrow finds partitions of files."""
    if "offset" not in schema.names:
        return parts
    kind, files = IpcFileFormat(), LocalFileSystem()
    offset = field("offset")
    named = [
        kind.make_fragment(
            str(number),
            filesystem=files,
            partition_expression=(offset >= part.first) & (offset <= part.last),
        )
        for number, part in enumerate(parts)
    ]
    found = FileSystemDataset(named, schema, kind, files).get_fragments(filter=predicate)
    return [parts[int(each.path)] for each in found]
