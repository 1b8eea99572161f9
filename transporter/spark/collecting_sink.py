"""The sink of a DataFrame route in a dry run: keeps its rows as JSON values.

Each slice becomes a file of JSON lines, ``[offset, {column: value}]``, named by its first offset
so that files sort by it. ``transporter.dry_run.collecting_writer`` reads them.
"""

from __future__ import annotations

import json
import math
from datetime import UTC
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampType, VariantType

from transporter.adaptor import AdaptorConfig
from transporter.table.cells import to_json_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from transporter.adaptor import DataFrameSlice, WriterContext


class RowCollectorConfig(AdaptorConfig):
    """The settings of :class:`RowCollector`."""

    folder: str


class RowCollector:
    """A ``DataFrameWriter`` that keeps rows, ordered by their offsets."""

    Config: ClassVar[type[AdaptorConfig]] = RowCollectorConfig

    def __init__(self, config: RowCollectorConfig) -> None:
        """Keep rows in the folder that *config* names."""
        self._folder = Path(config.folder)

    def open(self, context: WriterContext) -> None:
        """Do nothing."""

    def save(self, frame: DataFrame, part: DataFrameSlice) -> None:
        """Keep the rows of *frame*. Redelivered rows replace the first ones."""
        kinds = frame.schema
        rows = [(row.offset, json_value(row, kinds)) for row in frame.collect()]
        lines = (f"{json.dumps(row)}\n" for row in sorted(rows, key=itemgetter(0)))
        (self._folder / f"{part.first:020d}.jsonl").write_text("".join(lines), encoding="utf-8")

    def close(self) -> None:
        """Do nothing."""


def json_value(value: Any, kind: DataType) -> Any:  # noqa: ANN401 - any type of column
    """Return *value*, which is of the type *kind*, as a JSON value."""
    if value is None:
        return None
    match kind:
        case StructType():
            fields = zip(kind.fields, value, strict=True)
            return {field.name: json_value(each, field.dataType) for field, each in fields}
        case ArrayType():
            return [json_value(each, kind.elementType) for each in value]
        case MapType():
            names = (str(json_value(each, kind.keyType)) for each in value)
            values = (json_value(each, kind.valueType) for each in value.values())
            return dict(zip(names, values, strict=True))
        case _:
            return _scalar(value, kind)


def _scalar(value: Any, kind: DataType) -> Any:  # noqa: ANN401 - as above
    if isinstance(kind, TimestampType):
        # Python gets it in the time zone of this host.
        return value.astimezone(UTC).isoformat()
    if isinstance(kind, VariantType):
        return json.loads(value.toJson())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return to_json_value(value)
