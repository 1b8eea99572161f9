"""Text output of the commands for parked entries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from transporter.cli import app
from transporter.log.commit_log import CommitLog
from transporter.log.reader import LogReader
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import OffsetLog
from transporter.offsets.parked import ParkedEntry, ParkedStore, ParkReason
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa


@pytest.fixture
def log(tmp_path: Path, batch: Callable[..., pa.RecordBatch]) -> str:
    """Return a log of one segment whose route ``r`` has parked entries 3 and 10."""
    directory = tmp_path / "log"
    with CommitLog.open(directory) as opened, OffsetLog(directory, "r") as offsets:
        opened.append(batch(10), "reader")
        headers = [("source", b"shop"), ("bytes", b"\xff")]
        opened.append(messages_to_batch([Message("n", b"\xff", None, headers=headers)]), "reader")
        offsets.settle(Range(0, 10), opened.durable)
        with LogReader(directory) as reader:
            for offset, error in ((3, "no"), (10, "refused\n\tIs it up?")):
                (entry,) = reader.read(offset, offset)
                parked = ParkedEntry(offset, entry, ParkReason(error, 1, 1))
                ParkedStore(offsets.folder).park(parked)
    return str(directory)


def test_answers_are_in_words(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Answers are yes and no, not the values of a programming language."""
    assert app.execute(["parked", "show", log, "r", "3"]) == 0
    assert "retry requested no\n" in capsys.readouterr().out
    assert app.execute(["parked", "retry", log, "r", "3"]) == 0
    assert app.execute(["parked", "show", log, "r", "3"]) == 0
    assert "retry requested yes\n" in capsys.readouterr().out


def test_an_entry_is_shown_without_python(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Headers have a line each, bytes are JSON, and an error is one line."""
    assert app.execute(["parked", "show", log, "r", "10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "error           refused Is it up?" in lines
    place = lines.index("headers         source: shop")
    assert lines[place + 1] == '                bytes: {"base64": "/w=="}'
    assert lines[place + 2] == 'data            {"base64": "/w=="}'
    assert app.execute(["parked", "show", log, "r", "3"]) == 0
    said = capsys.readouterr().out
    assert "\nheaders         none\n" in said
    assert "behind" not in said


def test_progress_is_listed_in_words(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A list of routes answers yes or no, as the page of one route does."""
    assert app.execute(["offsets", "list", log]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert row.split() == ["r", "10", "0", "0", "no", "no"]


def test_a_forgotten_route_is_forgotten_at_once(
    log: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No next run is announced, and the question names no offset that there is not."""
    with OffsetLog(Path(log), "b"):
        pass
    questions: list[str] = []
    monkeypatch.setattr("transporter.cli.route.confirm", questions.append)
    assert app.execute(["route", "forget", log, "b"]) == 0
    assert capsys.readouterr().out == "route b: forgotten; it no longer pins the log\n"
    assert app.execute(["route", "forget", log, "r"]) == 0
    assert questions == [
        "Remove the progress of route b, which has settled no entry?",
        "Remove the progress of route r, up to offset 10?",
    ]


def test_a_resume_of_what_is_not_paused(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The answer says that there was nothing to do, and announces nothing."""
    assert app.execute(["route", "resume", log, "r"]) == 0
    assert capsys.readouterr().out == "route r: was not paused; watermark 10\n"


def test_a_log_that_is_held_by_nothing(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A route that has settled everything holds no entry."""
    assert app.execute(["log", "info", log]) == 0
    assert "held by     nothing: every route has settled all entries\n" in capsys.readouterr().out


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
    assert "1 segment, whole through offset 10\n" in capsys.readouterr().out


def test_an_unknown_route_is_a_mistake_in_the_command(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown route exits with 2, and the error lists the known routes."""
    assert app.execute(["parked", "list", log, "none"]) == 2
    assert app.execute(["route", "pause", log, "none"]) == 2
    assert capsys.readouterr().err.count("known: r") == 2
