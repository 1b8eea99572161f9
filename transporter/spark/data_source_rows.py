"""The table's columns as Spark's types, and the filters that Spark has pushed into a read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from transporter.errors import ConfigError
from transporter.message import ENTRY_SCHEMA
from transporter.spark.data_source_filters import apply_filters
from transporter.table.options import TEXT
from transporter.table.rows import RowSelection, Shape, typed_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructField, StructType

    from transporter.log.reader import LocatedFrame
    from transporter.table.options import Options
    from transporter.table.plan import TablePart


def schema_of(options: Options) -> StructType:
    """Return the columns of the table that a query with *options* reads."""
    known = from_arrow_schema(typed_schema(options.text))
    return type(known)([known[name] for name in options.columns])


def shape_of(schema: StructType, options: Options) -> Shape:
    """Return the shape of *schema*, which may be one that the user has specified.

    Raises:
        ConfigError: the log has no such column, or not of this type.

    """
    for field in schema:
        _check_column(field)
    return Shape(to_arrow_schema(schema, timezone="UTC"), options.lenient)


def _check_column(field: StructField) -> None:
    if field.name not in ENTRY_SCHEMA.names:
        names = ", ".join(ENTRY_SCHEMA.names)
        raise ConfigError(f"the log has no column {field.name!r}; its columns are {names}")
    kinds = [frozenset[str](), frozenset(TEXT)]
    known = [from_arrow_schema(typed_schema(text))[field.name] for text in kinds]
    allowed = {each.dataType.simpleString() for each in known}
    if field.dataType.simpleString() not in allowed:
        kind = " or ".join(sorted(allowed))
        raise ConfigError(f"column {field.name} of the log is {kind}; cast it in the query")
    if known[0].nullable and not field.nullable:
        raise ConfigError(f"column {field.name} of the log may be null; leave out NOT NULL")


@dataclass(frozen=True, slots=True)
class Filtered(RowSelection):
    """A selection limited to the entries that also pass the ``filters``."""

    filters: tuple[Filter, ...] = ()

    def select(self, found: LocatedFrame, part: TablePart) -> pa.RecordBatch:
        """Return the wanted entries of a frame that lie in *part*."""
        return apply_filters(RowSelection.select(self, found, part), self.filters)
