"""Text output of the commands for parked entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from transporter.cli import app
from transporter.log.commit_log import CommitLog
from transporter.log.reader import LogReader
from transporter.offsets.offset_log import OffsetLog
from transporter.offsets.parked import ParkedEntry, ParkedStore, ParkReason
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa


@pytest.fixture
def log(tmp_path: Path, batch: Callable[..., pa.RecordBatch]) -> str:
    """Return a log of one segment whose route ``r`` has parked entry 3."""
    directory = tmp_path / "log"
    with CommitLog.open(directory) as opened, OffsetLog(directory, "r") as offsets:
        opened.append(batch(10), "reader")
        offsets.settle(Range(0, 9), opened.durable)
        with LogReader(directory) as reader:
            (entry,) = reader.read(3, 3)
        ParkedStore(offsets.folder).park(ParkedEntry(3, entry, ParkReason("no", 1, 1)))
    return str(directory)


def test_answers_are_in_words(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Answers are yes and no, not the values of a programming language."""
    assert app.execute(["parked", "show", log, "r", "3"]) == 0
    assert "retry requested no\n" in capsys.readouterr().out
    assert app.execute(["parked", "retry", log, "r", "3"]) == 0
    assert app.execute(["parked", "show", log, "r", "3"]) == 0
    assert "retry requested yes\n" in capsys.readouterr().out


def test_one_offset_is_named_as_one(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A single offset is not written as a range."""
    assert app.execute(["parked", "skip", log, "r", "7"]) == 1
    assert app.execute(["parked", "skip", log, "r", "5..7"]) == 1
    told = capsys.readouterr().err
    assert "nothing is parked at 7\n" in told
    assert "nothing is parked at 5..7\n" in told


def test_one_segment_is_counted_as_one(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A log of one segment is reported in the singular."""
    assert app.execute(["log", "verify", log]) == 0
    assert "1 segment, whole through offset 9\n" in capsys.readouterr().out


def test_an_unknown_route_is_a_mistake_in_the_command(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown route exits with 2, and the error lists the known routes."""
    assert app.execute(["parked", "list", log, "none"]) == 2
    assert app.execute(["route", "pause", log, "none"]) == 2
    assert capsys.readouterr().err.count("known: r") == 2
