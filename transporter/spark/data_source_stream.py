"""The log as a stream of Spark: ``spark.readStream.format("transporter").load(DIRECTORY)``.

Spark's checkpoint holds ``{"log": id, "offset": the next one to read}``. A stream
is not a route: retention and compaction do not wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from transporter.errors import ConfigError, Corrupt, EnvironmentFault, OffsetRefused
from transporter.log.filesystem import RealFileSystem
from transporter.log.follow import Follower
from transporter.log.meta import read_meta
from transporter.log.reader import LogReader
from transporter.log.search import END, RETRIES, EntryFilter, first_offset_since
from transporter.table.options import EARLIEST, LATEST, Moment
from transporter.table.plan import (
    TablePart,
    first_present_offset,
    read_log_info,
    refuse_lost,
    split_offsets,
)
from transporter.table.rows import RowSelection, read_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.streaming.datasource import ReadLimit

    from transporter.errors import TransporterError
    from transporter.table.options import Options
    from transporter.table.rows import Shape

_LOG: Final = "log"
_OFFSET: Final = "offset"
Progress = dict[str, Any]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc] # pyspark is untyped
    """A reader that plans the micro-batches of one stream and reads them in their tasks."""

    def __init__(self, options: Options, shape: Shape) -> None:
        """Keep values only, because Spark pickles the reader for its tasks."""
        self._options, self._shape = options, shape
        self._follower: Follower | None = None
        self._target: int | None = None

    def initialOffset(self) -> Progress:  # noqa: N802 - Spark's name
        """Return the start of a stream without a checkpoint."""
        return self._progress_at(_start_offset(self._options, self._end_offset()))

    def latestOffset(self, start: Progress, limit: ReadLimit) -> Progress:  # noqa: N802 - Spark's name
        """Return the end of the micro-batch from *start*, within *limit*."""
        self._check_log(start)
        end = self._end_offset() if self._target is None else self._target
        if end <= start[_OFFSET]:
            return start
        first = first_present_offset(self._options, start[_OFFSET])
        return self._progress_at(max(first, _limited_end(self._options, first, end, limit)))

    def reportLatestOffset(self) -> Progress:  # noqa: N802 - Spark's name
        """Return the end of the log for the progress of the query."""
        return self._progress_at(self._end_offset())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit that the options set."""
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Have the stream end at the current end of the log."""
        self._target = self._end_offset()

    def partitions(self, start: Progress, end: Progress) -> list[InputPartition]:
        """Return one partition for each range of frames between *start* and *end*."""
        self._check_log(start)
        first, last = start[_OFFSET], end[_OFFSET] - 1
        if last < first:
            return []
        first = first_present_offset(self._options, first)
        if self._options.fail_on_loss:
            refuse_lost(self._options.directory, first, last)
        parts = split_offsets(self._options.directory, first, last, self._options.partition_bytes)
        return list(map(InputPartition, parts))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of a partition."""
        selection = RowSelection(EntryFilter(self._options.namespace))
        return read_rows(self._options, TablePart(*partition.value), selection, self._shape)

    def stop(self) -> None:
        """Close the open files of the log."""
        if self._follower is not None:
            self._follower.close()

    def _end_offset(self) -> int:
        """Return the offset behind the last one confirmed as durable (Invariant 12)."""
        if self._follower is None:
            confirmed = read_log_info(self._options.directory).confirmed
            self._follower = Follower(self._options.directory, 0, confirmed)
        return self._follower.confirmed_offset() + 1

    def _progress_at(self, offset: int) -> Progress:
        return {_LOG: _log_id(self._options), _OFFSET: offset}

    def _check_log(self, start: Progress) -> None:
        found = _log_id(self._options)
        if start[_LOG] != found:
            raise ConfigError(
                f"{self._options.directory}: this stream's checkpoint is of the log {start[_LOG]}, "
                f"and this is the log {found}; give the stream a new checkpointLocation"
            )


class RefusedStream(DataSourceStreamReader):  # type: ignore[misc] # pyspark is untyped
    """A stand-in for a stream that cannot start. Every method raises the reason."""

    def __init__(self, error: TransporterError) -> None:
        """Keep *error* for every method to raise."""
        self._error = error

    def initialOffset(self) -> Progress:  # noqa: N802 - Spark's name
        """Raise."""
        raise self._error

    def latestOffset(self, start: Progress, limit: ReadLimit) -> Progress:  # noqa: ARG002, N802 - Spark's
        """Raise."""
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Raise."""
        raise self._error

    def partitions(self, start: Progress, end: Progress) -> list[InputPartition]:  # noqa: ARG002 - Spark's
        """Raise."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002 - Spark's
        """Raise."""
        raise self._error


def _log_id(options: Options) -> str:
    meta = read_meta(RealFileSystem(), options.directory)
    if meta is None:
        raise EnvironmentFault(f"{options.directory}: the log that was here is gone")
    return meta.log_id


def _start_offset(options: Options, end: int) -> int:
    if options.starting == LATEST:
        return end
    with LogReader(options.directory) as reader:
        oldest = reader.first_offset()
        if options.starting == EARLIEST:
            return oldest
        if isinstance(options.starting, Moment):
            try:
                return first_offset_since(reader, options.starting.time, end - 1)
            except OffsetRefused:
                return end  # no entry is that new, so it begins with the next one
    return first_present_offset(options, int(options.starting))


def _limited_end(options: Options, first: int, end: int, limit: ReadLimit) -> int:
    """Return the end of the part that *limit* allows of the range from *first* to *end*."""
    most, size = END, END
    if isinstance(limit, ReadMaxRows):
        most = limit.max_rows
    elif isinstance(limit, ReadMaxBytes):
        size = limit.max_bytes
    else:
        return end
    for attempt in range(RETRIES):
        try:
            with LogReader(options.directory) as reader:
                return reader.slice_end(first, end - 1, most, size) + 1
        except (Corrupt, EnvironmentFault):
            # A segment may have been replaced or removed under the reader.
            if attempt + 1 == RETRIES:
                raise
    return end
