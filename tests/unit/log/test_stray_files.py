"""Files that resemble segments: they are named and never read."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from log_tools import Disk, offsets_of

from transporter.cli.app import execute
from transporter.engine.maintenance.committer import LogWarnings
from transporter.errors import EnvironmentFault
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.reader import LogReader
from transporter.log.retention import RetentionSettings, apply_retention
from transporter.log.search import first_offset_since, offsets_around
from transporter.log.segment import (
    MisplacedSegment,
    base_of,
    segment_bases,
    segment_name,
    stray_files,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    Make = Callable[..., pa.RecordBatch]

NAMES = (
    "20260101.log",
    "0.log",
    "00000000000000000000.log.bak",
    "00000000000000000000.log~",
    "000000000000000000000.log",
    "99999999999999999999.log",
    "99999999999999999999999999.log",
)
HARMLESS = ("spark.log", "notes.txt", "\u0660.log", "-1.log", ".log", "00000000000000000000.index")


@pytest.fixture
def log(tmp_path: Path, batch: Make) -> Path:
    """Return a log of three segments, one entry in each."""
    directory = tmp_path / "log"
    with CommitLog.open(directory, segment_bytes=1) as opened:
        for _ in range(3):
            opened.append(batch(1), "r")
    return directory


def test_only_exact_names_are_segments() -> None:
    """A segment's name is exactly its base in twenty digits and a suffix."""
    assert base_of(segment_name(0)) == 0
    assert base_of(segment_name((1 << 63) - 1)) == (1 << 63) - 1
    assert [base_of(name) for name in (*NAMES, *HARMLESS)] == [None] * 13


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_a_similar_name_is_ignored_and_named(log: Path, batch: Make, name: str) -> None:
    """The log opens, rolls, is read, searched and removed from, whatever similar names it has."""
    (log / name).write_bytes((log / segment_name(0)).read_bytes())
    with CommitLog.open(log, segment_bytes=1) as opened:
        opened.append(batch(1), "r")
        seen: list[tuple[str, object]] = []
        LogWarnings(opened, lambda event, **details: seen.append((event, details["file"]))).begin()
        assert seen == [("file-ignored", name)]
    assert offsets_of(log) == [0, 1, 2, 3]
    assert [each.name for each in stray_files(RealFileSystem(), log)] == [name]
    assert offsets_around(log, 0) == (0, 0)
    with LogReader(log) as reader:
        assert first_offset_since(reader, 0, 3) == 0
    settings = RetentionSettings(bytes=1)
    assert len(list(apply_retention(log, watermark=lambda: 3, settings=settings, now=0))) == 3
    assert (log / name).exists()


@pytest.mark.parametrize("name", HARMLESS)
def test_other_files_are_nobodys_business(log: Path, name: str) -> None:
    """Files that do not resemble a segment are not named."""
    (log / name).touch()
    assert stray_files(RealFileSystem(), log) == []
    CommitLog.open(log).close()


@pytest.mark.parametrize("kind", ["folder", "fifo", "dangling link"])
def test_what_is_no_file_under_a_segments_name_is_refused(log: Path, kind: str) -> None:
    """A start is refused for a name that a roll may reach, and a reader ignores it."""
    path = log / segment_name(7)
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere")
    with LogReader(log) as reader:
        assert [found.frame.first for found in reader.frames(0, 2)] == [0, 1, 2]
    with pytest.raises(EnvironmentFault, match=f"{path.name}: not a regular file"):
        CommitLog.open(log)


def test_a_copy_under_another_segments_name_is_refused(log: Path) -> None:
    """The start names the file, and a running reader skips nothing because of it."""
    path = log / segment_name(7)
    with LogReader(log) as early, LogReader(log) as late:
        assert sum(map(len, early.read(0, 0))) == 1
        shutil.copy(log / segment_name(0), path)
        assert sum(map(len, early.read(0, 2))) == 3
        assert sum(map(len, late.read(0, 2))) == 3
        assert [found.frame.first for found in late.frames_backwards(2)] == [2, 1, 0]
    with pytest.raises(MisplacedSegment, match=r"a copy of 0+\.log") as caught:
        CommitLog.open(log)
    assert caught.value.file == str(path)
    assert segment_bases(Disk(), log) == [0, 1, 2, 7]


def test_a_repair_puts_a_misplaced_copy_into_quarantine(log: Path) -> None:
    """A repair quarantines a misplaced copy, and the log is whole without it."""
    shutil.copy(log / segment_name(0), log / segment_name(7))
    assert execute(["log", "verify", str(log)]) == 1
    assert execute(["log", "repair", str(log), "--yes"]) == 0
    assert [path.name for path in (log / "quarantine").rglob("*.log")] == [segment_name(7)]
    CommitLog.open(log).close()
    assert offsets_of(log) == [0, 1, 2]


def test_segments_that_vanish_at_once_are_an_error(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that lists segments which it cannot open does not make a reader loop."""
    monkeypatch.setattr("transporter.log.reader.MAX_LISTINGS", 5)

    class Odd(RealFileSystem):
        def names(self, directory: Path) -> list[str]:
            return [*super().names(directory), segment_name(9)]

        def is_file(self, path: Path) -> bool:
            return True

    with LogReader(log, Odd()) as reader, pytest.raises(EnvironmentFault, match="listed"):
        list(reader.read(0, 0))


def test_a_folder_that_ends_like_a_temporary_file_is_left_alone(log: Path) -> None:
    """A start removes only its own temporary files."""
    (log / "folder.tmp").mkdir()
    (log / (segment_name(3) + ".tmp")).touch()
    CommitLog.open(log).close()
    assert (log / "folder.tmp").is_dir()
    assert not (log / (segment_name(3) + ".tmp")).exists()


def test_commands_name_what_is_ignored(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``log info`` and ``log verify`` list ignored files and succeed."""
    (log / "20260101.log").touch()
    for command in ("info", "verify"):
        assert execute(["log", command, str(log)]) == 0
        assert "20260101.log: a segment's name is 20 digits" in capsys.readouterr().out
        assert execute(["log", command, str(log), "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["result"]["ignored"]
        assert found["name"] == "20260101.log"


def test_info_tells_of_log_time_that_is_ahead(
    tmp_path: Path, batch: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """``log info`` reports the lead of log time over the wall clock and no other time."""
    with CommitLog.open(tmp_path / "right") as log:
        log.append(batch(1), "r")
    with CommitLog.open(tmp_path / "wrong", clock=lambda: 4_102_444_800_000_000) as log:
        log.append(batch(1), "r")
    assert execute(["log", "info", str(tmp_path / "right")]) == 0
    assert "ahead" not in capsys.readouterr().out
    assert execute(["log", "info", str(tmp_path / "wrong")]) == 0
    assert "s ahead of the wall clock" in capsys.readouterr().out
    assert execute(["log", "info", str(tmp_path / "wrong"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["ahead"] > 3600
