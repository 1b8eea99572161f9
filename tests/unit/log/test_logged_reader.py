"""A reader's newest position, read from the log without its lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from log_tools import small

from transporter.adaptor import state_name
from transporter.errors import EnvironmentFault
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.logged_reader import find_logged_reader, read_positions
from transporter.log.reader_states import ReaderStates
from transporter.log.segment import segment_bases

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa


def test_without_a_log_there_is_nothing(tmp_path: Path) -> None:
    """A folder that is missing, or empty, has no log, and nothing is created in it."""
    for directory in (tmp_path / "missing", tmp_path):
        found = find_logged_reader(directory, "shop")
        assert (found.name, found.log_id, found.position) == ("shop", "", None)
    assert list(tmp_path.iterdir()) == []


def test_an_open_log_has_each_readers_position(
    tmp_path: Path, batch: Callable[..., pa.RecordBatch]
) -> None:
    """The newest position of each reader counts, however far back it is."""
    with small(), CommitLog.open(tmp_path, segment_bytes=20_000, compression=None) as log:
        log.append(batch(1), "idle", "i1")
        for number in range(40):
            log.append(batch(1, size=1000), "busy", f"b{number}")
            log.append(batch(1), "busy")
        found = find_logged_reader(tmp_path, "idle")
        assert (found.log_id, found.position) == (log.log_id, "i1")
        assert read_positions(tmp_path) == {"idle": "i1", "busy": "b39"}
        assert find_logged_reader(tmp_path, "other").position is None
        assert len(segment_bases(RealFileSystem(), tmp_path)) > 1
    assert read_positions(tmp_path) == {"idle": "i1", "busy": "b39"}


def test_the_state_of_a_position_is_read(
    tmp_path: Path, batch: Callable[..., pa.RecordBatch]
) -> None:
    """A state is found by its name, and a missing one is an error with its path."""
    with CommitLog.open(tmp_path) as log:
        ReaderStates(tmp_path, "shop").keep(state_name("long"), "long")
        log.append(batch(1), "shop", "p")
        found = find_logged_reader(tmp_path, "shop")
        assert found.read_state(state_name("long")) == "long"
        with pytest.raises(EnvironmentFault, match="the reader's state is missing"):
            found.read_state("0" * 32)
