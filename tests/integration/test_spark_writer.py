"""The spark writer on a folder that a cluster's hosts are supposed to share: it counts rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest
from frame_tools import session
from transporter_adaptors.spark.writer import SparkWriter, SparkWriterConfig

from transporter.adaptor import DataFrameSlice, WriterContext
from transporter.errors import RouteFault, SinkUnavailable

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark


@pytest.mark.exhaustive
def test_only_what_was_counted_is_committed(tmp_path: Path) -> None:
    """A late count is waited for, and a wrong one stops the route."""
    folder = tmp_path / "daily"
    writer = SparkWriter(SparkWriterConfig(path=folder.as_uri()))
    with session(tmp_path / "spark") as spark:
        writer.open(WriterContext(log_id="0123456789abcdef", route="daily", epoch=1))
        frame = spark.range(3).withColumnRenamed("id", "offset")
        with pytest.raises(SinkUnavailable, match="did not report in time"):
            writer.save(frame, DataFrameSlice(0, 2, 0, lambda: None))
        with pytest.raises(RouteFault, match=r"sees 3 of the 4 rows .* not the same folder"):
            writer.save(frame, DataFrameSlice(0, 2, 0, lambda: 4))
        assert not list(folder.glob("*.parquet"))
        writer.save(frame, DataFrameSlice(0, 2, 0, lambda: 3))
        writer.close()
    found = ds.dataset(folder, format="parquet").to_table()
    assert sorted(found["offset"].to_pylist()) == [0, 1, 2]
    assert not list(folder.glob("_transporter/*/*/slice-*"))
