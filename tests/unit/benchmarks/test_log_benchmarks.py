"""The work that the benchmarks of the log measure, checked for completeness."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from log_tools import damage

from benchmarks import log_read, log_reopen
from benchmarks.group_commit import append_rate
from benchmarks.log_append import SlowDisk, describe_parts
from benchmarks.log_stores import commit_to_lmdb, commit_to_sqlite
from benchmarks.messages import batches, messages
from transporter.errors import Corrupt
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import open_file
from transporter.log.reader import LogReader
from transporter.message import ENTRY_SCHEMA, with_offsets

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transporter.message import Message


def test_ready_batches_hold_the_messages_that_objects_are() -> None:
    """Both sides of a comparison write the same messages, from the first to the last."""
    held = [data for batch in batches(3, 10) for data in batch.column("data").to_pylist()]
    assert held == [message.data for message in messages(30)]
    assert len(set(held)) == 30


def test_a_slow_disk_syncs_late_and_writes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the sync pays the delay, and it still syncs."""
    events: list[str] = []
    monkeypatch.setattr("benchmarks.log_append.time.sleep", lambda s: events.append(f"sleep {s}"))
    monkeypatch.setattr(os, "fdatasync", lambda _: events.append("fdatasync"))
    with open_file(SlowDisk(0.002), tmp_path / "file", write=True, create=True) as file:
        file.pwrite(b"data", 0)
        assert events == []
        file.sync()
    assert events == ["sleep 0.002", "fdatasync"]


def test_the_parts_of_a_frame_add_up_to_what_it_takes(tmp_path: Path) -> None:
    """Header, extension, payload and padding add up to the distance between two frames."""
    with CommitLog.open(tmp_path) as log:
        log.append(batches(1, 1)[0], "bench", "position")
        log.append(batches(1, 1)[0], "bench", "position")
    with LogReader(tmp_path) as reader:
        first, second = reader.frames(0, 1)
        text = describe_parts(first)
        extension, payload = first.frame.extension_length, first.frame.payload_length
        size = second.frame.byte - first.frame.byte
        pad = size - 92 - extension - payload
    assert text.startswith(
        f"A frame of 1 message takes {size} bytes: header 92, extension {extension}, "
        f"payload {payload}, padding {pad};"
    )


def test_every_reader_of_a_group_appends_all_its_batches(tmp_path: Path) -> None:
    """All batches of every thread are in the log."""
    assert append_rate(tmp_path, batches(3, 10), each=4, delay=0.0) > 0
    with CommitLog.open(tmp_path) as log:
        assert log.durable == 3 * 4 * 10 - 1
        assert log.positions == dict.fromkeys(("reader-0", "reader-1", "reader-2"), "position")


def test_reading_touches_every_byte_of_every_column() -> None:
    """Reading touches at least the bytes of all columns, so none is left undecoded."""
    entries = with_offsets(batches(1, 50)[0], 0, 1)
    assert log_read.touch(entries) >= entries.nbytes
    assert log_read.touch(entries) > log_read.touch(entries.select(ENTRY_SCHEMA.names[:8]))


@pytest.mark.parametrize("codec", ["lz4", None])
def test_the_floor_of_reading_covers_every_frame(tmp_path: Path, codec: str | None) -> None:
    """The bytes that are read and checked are those of all frames, without gaps."""
    log = log_read.write_log(tmp_path, batches(2, 100), 7, codec)
    assert log.last == 699
    assert [end for _, end in log.frames[:-1]] == [first for first, _ in log.frames[1:]]
    assert log_read.read_rate(log) > 0
    assert log_read.check_rate(log) > 0


def test_reading_verifies_what_it_reads(tmp_path: Path) -> None:
    """Reading verifies checksums, so that a flipped bit is an error."""
    log = log_read.write_log(tmp_path, batches(1, 100), 2, None)
    damage(tmp_path, log.frames[0][1] - 100)
    with pytest.raises(Corrupt):
        log_read.read_rate(log)


@pytest.mark.parametrize("store", [commit_to_sqlite, commit_to_lmdb])
def test_a_store_is_held_to_all_that_it_committed(
    tmp_path: Path, store: Callable[[Path, list[list[Message]], int], float]
) -> None:
    """A store with fewer messages than were committed is an error, not a faster store."""
    given = messages(2000)
    whole = [given[:1000], given[1000:]]
    assert store(tmp_path / "store", whole, 3) > 0
    with pytest.raises(RuntimeError, match="1999 are there"):
        store(tmp_path / "store", [given[:1000], given[1001:]], 2)


def test_a_reopened_log_was_killed_before(tmp_path: Path) -> None:
    """Each timed open follows a kill, recovers the log, and finds the appended messages."""
    log = log_reopen.CrashedLog(tmp_path)
    assert 0 < log.reopen() < 60
    with CommitLog.open(tmp_path) as after:
        assert after.epoch == 3
        assert after.durable >= 20_000
    assert len(list(tmp_path.glob("*.log"))) >= 2


def test_an_engine_that_ends_by_itself_is_no_measurement(tmp_path: Path) -> None:
    """A log that cannot be opened is reported, and never timed."""
    (tmp_path / "00000000000000000000.log").write_bytes(b"no segment")
    with pytest.raises(RuntimeError, match="ended by itself"):
        log_reopen.CrashedLog(tmp_path).reopen()


def test_a_disk_is_filled_up_to_what_is_to_be_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The filler takes all free space but the last bytes, and never shrinks."""
    reserved: list[tuple[int, int]] = []
    free = os.statvfs_result((4096, 4096, 100, 50, 30, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: free)
    monkeypatch.setattr(os, "posix_fallocate", lambda *where: reserved.append(where[1:]))
    (tmp_path / "filler").write_bytes(b"abc")
    log_reopen.fill_up(tmp_path / "filler", 8192)
    log_reopen.fill_up(tmp_path / "filler", 31 * 4096)
    assert reserved == [(3, 30 * 4096 - 8192)]


def test_without_root_the_full_disk_is_said_not_to_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root the report gives the reason, and the other figures."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in log_reopen.mount_problem()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("benchmarks.log_reopen.shutil.which", lambda _: None)
    assert log_reopen.mount_problem() == "there is no mkfs.ext4"
    monkeypatch.setattr("benchmarks.log_reopen.shutil.which", lambda tool: sys.executable + tool)
    assert not log_reopen.mount_problem()
