"""Tests of the rows for Spark: the columns, their types, bytes as text, joined frames."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import In
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StructType

from transporter.errors import ConfigError, LogError, OffsetRefused
from transporter.log.commit_log import CommitLog
from transporter.log.search import EntryFilter
from transporter.message import ENTRY_SCHEMA, Message, messages_to_batch, with_offsets
from transporter.spark.data_source import BatchReader
from transporter.spark.data_source_filters import bounds_of
from transporter.spark.data_source_rows import Filtered, schema_of, shape_of
from transporter.table.options import Options
from transporter.table.plan import TablePart
from transporter.table.rows import RowSelection, Shape, read_rows

MESSAGES = [
    Message("a", b"{}", b"k", headers=(("h", b"\xff"), ("i", None))),
    Message("a", None, None),
    Message("b", b"\xff", b"\xfe"),
]


@pytest.fixture
def options(tmp_path: Path) -> Options:
    """Return the options of a query on a log of three frames, each in one segment."""
    with CommitLog.open(tmp_path / "log", segment_bytes=1) as opened:
        for message in MESSAGES:
            opened.append(messages_to_batch([message] * 2), "r")
    return Options(tmp_path / "log")


def shape(options: Options, **changes: Any) -> Shape:
    """Return the shape of the table, or of one with other columns."""
    changed = Options(options.directory, **changes)
    return shape_of(schema_of(changed), changed)


def test_the_columns() -> None:
    """The table has the log's columns, with data as text unless bytes are requested."""
    text = schema_of(Options(Path("/l")))
    assert text.fieldNames() == ENTRY_SCHEMA.names
    assert [text[name].dataType.simpleString() for name in ("data", "key")] == ["string", "binary"]
    binary = schema_of(Options(Path("/l"), text=frozenset({"key"}), columns=("key", "data")))
    assert [field.dataType.simpleString() for field in binary] == ["string", "binary"]


def test_batches_are_what_spark_expects(options: Options) -> None:
    """A batch has exactly the Arrow schema that Spark makes of the table's schema."""
    changed = {"text": frozenset[str]()}
    wanted = to_arrow_schema(schema_of(Options(options.directory, **changed)), timezone="UTC")
    (found,) = read_rows(
        options, TablePart(0, 5), RowSelection(EntryFilter()), shape(options, **changed)
    )
    assert found.schema.equals(wanted)
    assert found.column("data").to_pylist() == [b"{}", b"{}", None, None, b"\xff", b"\xff"]
    assert found.column("headers").to_pylist()[0] == [
        {"name": "h", "value": b"\xff"},
        {"name": "i", "value": None},
    ]


def test_bytes_as_text() -> None:
    """Text is decoded, and other bytes are an error with their offset, or null if requested."""
    entries = with_offsets(messages_to_batch(MESSAGES), 7, 0)
    columns = {"columns": ("data", "key"), "text": frozenset({"data", "key"})}
    nowhere = Options(Path("/l"))
    with pytest.raises(LogError, match=r"data at offset 9 is not UTF-8 text; set the option data"):
        shape(nowhere, **columns).convert(entries)
    lenient = shape(nowhere, lenient=True, **columns).convert(entries)
    assert lenient.to_pydict() == {"data": ["{}", None, None], "key": ["k", None, None]}
    assert shape(nowhere, **columns).convert(entries.slice(0, 2)).column("data").to_pylist() == [
        "{}",
        None,
    ]


@pytest.mark.parametrize(
    ("name", "kind", "problem"),
    [
        ("nope", LongType(), "the log has no column 'nope'; its columns are offset, logged_at"),
        ("offset", IntegerType(), "column offset of the log is bigint"),
        ("data", LongType(), "column data of the log is binary or string"),
        ("namespace", BinaryType(), "column namespace of the log is string"),
    ],
)
def test_a_schema_that_does_not_fit(name: str, kind: DataType, problem: str) -> None:
    """A column that the log does not have, or that has another type, is refused by name."""
    with pytest.raises(ConfigError) as error:
        shape_of(StructType().add(name, kind), Options(Path("/l")))
    assert problem in str(error.value)


def test_small_frames_are_joined(options: Options) -> None:
    """Spark gets one batch of the wanted entries for many small frames."""
    found = list(
        read_rows(options, TablePart(1, 3), RowSelection(EntryFilter("^a$")), shape(options))
    )
    assert [batch.column("offset").to_pylist() for batch in found] == [[1, 2, 3]]
    assert (
        list(read_rows(options, TablePart(0, 3), RowSelection(EntryFilter("^b$")), shape(options)))
        == []
    )


def test_frames_are_skipped_by_their_headers(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames without any of the requested offsets are not read."""
    read = []
    of = RowSelection.select
    monkeypatch.setattr(
        RowSelection,
        "select",
        lambda self, found, part: read.append(found.frame.first) or of(self, found, part),
    )
    filters = (In(("offset",), [1, 4]),)
    selection = Filtered(EntryFilter(), bounds_of(filters), filters)
    (found,) = read_rows(options, TablePart(0, 5), selection, shape(options, columns=("offset",)))
    assert (found.column("offset").to_pylist(), read) == ([1, 4], [0, 4])


def test_entries_removed_meanwhile(options: Options) -> None:
    """Entries that retention removes during a query are an error, or skipped if allowed."""
    (options.directory / f"{0:020d}.log").unlink()
    columns = {"columns": ("offset",)}
    with pytest.raises(OffsetRefused, match="retained from 2"):
        list(
            read_rows(
                options, TablePart(0, 5), RowSelection(EntryFilter()), shape(options, **columns)
            )
        )
    lenient = Options(options.directory, fail_on_loss=False)
    (found,) = read_rows(
        lenient, TablePart(0, 5), RowSelection(EntryFilter()), shape(options, **columns)
    )
    assert found.column("offset").to_pylist() == [2, 3, 4, 5]


def test_a_reader_travels(options: Options) -> None:
    """A pickled reader reads the same partition elsewhere."""
    reader = pickle.loads(pickle.dumps(BatchReader(options, shape(options, columns=("offset",)))))  # noqa: S301 - our own
    (partition,) = reader.partitions()
    (found,) = reader.read(partition)
    assert found.num_rows == 6
