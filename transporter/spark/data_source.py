"""The log as a table of Spark: ``spark.read.format("transporter").load(DIRECTORY)``.

Spark finds :class:`TransporterSource` by itself, through the package
``pyspark_transporter``, if transporter is installed. No lock and no engine are
needed. A query reads the entries that are confirmed when it is planned (Invariant 12).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from transporter.errors import TransporterError
from transporter.spark.data_source_filters import bounds_of as bounds_of_filters
from transporter.spark.data_source_filters import can_evaluate
from transporter.spark.data_source_rows import Filtered, schema_of, shape_of
from transporter.spark.data_source_stream import RefusedStream, StreamReader
from transporter.table.options import read_options, refuse_options
from transporter.table.plan import TablePart, plan_parts, read_log_info
from transporter.table.rows import read_rows, selection_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from transporter.table.options import Options
    from transporter.table.rows import RowSelection, Shape

NAME: Final = "transporter"


class TransporterSource(DataSource):  # type: ignore[misc] # pyspark is untyped
    """The log in a directory, for batch queries and for streams."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return NAME

    def schema(self) -> StructType:
        """Return the table's columns. Without a log this raises, at ``load``."""
        options = self._options()
        read_log_info(options.directory)
        return schema_of(options)

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of a batch query."""
        refuse_options(self.options, streaming=False)
        options = self._options()
        kind = PushingReader if options.push_down else BatchReader
        return kind(options, shape_of(schema, options))

    def streamReader(self, schema: StructType) -> StreamReader | RefusedStream:  # noqa: N802 - Spark's name
        """Return the reader of a stream."""
        try:
            refuse_options(self.options, streaming=True)
            options = self._options()
            return StreamReader(options, shape_of(schema, options))
        except TransporterError as error:
            # Raised here, it would appear below a consequential error of Spark's own.
            return RefusedStream(error)

    def _options(self) -> Options:
        return read_options(self.options, datetime.now(UTC))


class BatchReader(DataSourceReader):  # type: ignore[misc] # pyspark is untyped
    """A reader that plans a query and reads it in tasks. It is pickled, so it holds values only."""

    def __init__(self, options: Options, shape: Shape) -> None:
        """Read the entries that *options* select, in *shape*."""
        self._options, self._shape = options, shape
        self._selection: RowSelection = selection_of(options)

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each range of frames."""
        return list(map(InputPartition, plan_parts(self._options, self._selection.bounds)))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of a partition."""
        if partition.value is None:  # Spark's substitute for an empty list of partitions
            return iter(())
        return read_rows(self._options, TablePart(*partition.value), self._selection, self._shape)


class PushingReader(BatchReader):
    """A reader that accepts filters from Spark, for a DataFrame read once and by one query.

    Spark 4.2 keeps the filters pushed last in a loaded DataFrame. A second read, in the
    same query or a later one, gets those rows only. So users must request it.
    ``from``, ``to`` and ``namespace`` have no such trap.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Accept the filters that can be evaluated exactly, and return the others."""
        taken = tuple(each for each in filters if can_evaluate(each, self._shape.converted_columns))
        bounds = self._selection.bounds.intersect(bounds_of_filters(taken))
        self._selection = Filtered(self._selection.entry_filter, bounds, taken)
        mine = set(map(id, taken))
        return [each for each in filters if id(each) not in mine]
