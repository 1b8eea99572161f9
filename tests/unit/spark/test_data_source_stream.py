"""Tests of a stream of the log, step by step as in Spark: its start and its limits."""

from __future__ import annotations

import pickle
from contextlib import closing
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING

import pytest
from log_tools import small, unsynced
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from transporter.errors import ConfigError, OffsetRefused
from transporter.log.commit_log import CommitLog
from transporter.spark.data_source import TransporterSource
from transporter.spark.data_source_rows import schema_of
from transporter.spark.data_source_stream import RefusedStream, StreamReader
from transporter.table.options import read_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    Make = Callable[..., pa.RecordBatch]

ALL = ReadAllAvailable()


@pytest.fixture
def log(tmp_path: Path, batch: Make) -> Iterator[Path]:
    """Return a log of six frames of five entries, a second apart, each a segment."""
    times = count(10**6, 10**6)
    with small():
        with CommitLog.open(tmp_path / "log", segment_bytes=1, clock=lambda: next(times)) as opened:
            for _ in range(6):
                opened.append(batch(5), "r")
        yield tmp_path / "log"


def stream(directory: Path, **options: str) -> StreamReader:
    """Return a stream, made as in Spark."""
    given = {"path": str(directory), **options}
    schema = schema_of(read_options(given, datetime.now(UTC)))
    made = TransporterSource(given).streamReader(schema)
    assert isinstance(made, StreamReader)
    return made


def begins(directory: Path, starting: str) -> int:
    """Return the first offset of a stream without a checkpoint."""
    with closing_stream(stream(directory, startingOffsets=starting)) as reader:
        return int(reader.initialOffset()["offset"])


class closing_stream(closing[StreamReader]):  # noqa: N801 - a context manager
    """A context manager that stops a stream at the end of a block."""

    def __exit__(self, *_: object) -> None:
        self.thing.stop()


@pytest.mark.parametrize(
    ("starting", "offset"),
    [
        ("earliest", 0),
        ("latest", 30),
        ("7", 7),
        ("99", 99),
        ("1970-01-01T00:00:00+00:00", 0),
        ("1970-01-01T00:00:04+00:00", 10),
        ("1s", 30),
    ],
)
def test_where_a_stream_begins(log: Path, starting: str, offset: int) -> None:
    """A stream begins at an end, at an offset, or at the first entry since a time."""
    assert begins(log, starting) == offset


def test_limits_bound_a_micro_batch(log: Path) -> None:
    """A limit of entries is exact, and a limit of bytes allows whole frames, at least one."""
    with closing_stream(stream(log, maxOffsetsPerTrigger="7")) as reader:
        start = reader.initialOffset()
        assert reader.getDefaultReadLimit() == ReadMaxRows(7)
        assert reader.latestOffset(start, ReadMaxRows(7))["offset"] == 7
        assert reader.latestOffset(start, ReadMaxRows(99))["offset"] == 30
        assert reader.latestOffset(start, ReadMaxBytes(1))["offset"] == 5
        assert reader.latestOffset(start, ALL)["offset"] == 30
        assert reader.reportLatestOffset()["offset"] == 30
    with closing_stream(stream(log, maxBytesPerTrigger="1KiB")) as reader:
        assert reader.getDefaultReadLimit() == ReadMaxBytes(1024)
    with closing_stream(stream(log)) as reader:
        assert reader.getDefaultReadLimit() == ALL


def test_a_stream_follows_an_engine(log: Path, batch: Make) -> None:
    """A stream reads entries that an engine made durable, but not those only written."""
    with closing_stream(stream(log)) as reader:
        start = reader.latestOffset(reader.initialOffset(), ALL)
        assert reader.latestOffset(start, ALL) == start
        with CommitLog.open(log) as opened:
            opened.append(batch(2), "r")
            unsynced(opened, batch(3))
            end = reader.latestOffset(start, ALL)
            assert (start["offset"], end["offset"]) == (30, 32)
            found = [part for each in reader.partitions(start, end) for part in reader.read(each)]
            assert [row for part in found for row in part.column("offset").to_pylist()] == [30, 31]
        assert reader.partitions(start, start) == []


def test_a_stream_that_ends_at_what_is_there(log: Path, batch: Make) -> None:
    """With Spark's trigger AvailableNow, later entries are left to the next run."""
    with closing_stream(stream(log)) as reader:
        reader.prepareForTriggerAvailableNow()
        with CommitLog.open(log) as opened:
            opened.append(batch(2), "r")
        end = reader.latestOffset(reader.initialOffset(), ALL)
        assert end["offset"] == 30
        assert reader.latestOffset(end, ALL) == end


def test_entries_that_were_removed(log: Path) -> None:
    """A loss is an error that names the offsets, or the stream continues at the oldest entry."""
    strict, lenient = stream(log), stream(log, failOnDataLoss="false")
    with closing_stream(strict), closing_stream(lenient):
        start = strict.initialOffset()
        for gone in sorted(log.glob("*.log"))[:2]:
            gone.unlink()
        for ask in (strict.latestOffset, strict.partitions):
            with pytest.raises(OffsetRefused, match=r"offsets 0\.\.9 were removed .* from 10"):
                ask(start, start | {"offset": 12} if ask == strict.partitions else ALL)
        end = lenient.latestOffset(start, ReadMaxRows(2))
        assert end["offset"] == 12
        assert [tuple(each.value) for each in lenient.partitions(start, end)] == [(10, 11)]


def test_a_checkpoint_of_another_log(log: Path) -> None:
    """A checkpoint names its log, and is refused for any other log."""
    with closing_stream(stream(log)) as reader:
        start = reader.initialOffset() | {"log": "another"}
        with pytest.raises(ConfigError, match="checkpoint is of the log another, and this is"):
            reader.latestOffset(start, ALL)
        with pytest.raises(ConfigError, match="give the stream a new checkpointLocation"):
            reader.partitions(start, start)


def test_a_namespace_in_a_stream(log: Path) -> None:
    """A stream has only the requested namespaces and columns, and can be pickled."""
    options = {"columns": "offset", "partitionBytes": "1"}
    for namespace, offsets in (("^orders", [*range(30)]), ("^other", [])):
        with closing_stream(stream(log, namespace=namespace, **options)) as reader:
            start = reader.initialOffset()
            parts = reader.partitions(start, reader.latestOffset(start, ALL))
        reader = pickle.loads(pickle.dumps(stream(log, namespace=namespace, **options)))  # noqa: S301
        found = [each for part in parts for each in reader.read(part)]
        assert [row for each in found for row in each.column("offset").to_pylist()] == offsets


def test_a_stream_that_cannot_be(log: Path) -> None:
    """A mistake in the options is raised by Spark's first call, not by the constructor."""
    refused = TransporterSource({"path": str(log), "to": "3"}).streamReader(None)
    assert isinstance(refused, RefusedStream)
    asks: tuple[Callable[[], object], ...] = (
        refused.initialOffset,
        refused.getDefaultReadLimit,
        lambda: refused.latestOffset({}, ALL),
        lambda: refused.partitions({}, {}),
        lambda: refused.read(None),
    )
    for ask in asks:
        with pytest.raises(ConfigError, match="to is not an option of a stream"):
            ask()
