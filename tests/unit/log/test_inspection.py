"""Inspection from outside: with an engine running, after a clean stop, after a crash."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from log_tools import Disk, crash, damage, unsynced

from transporter.errors import Corrupt, EnvironmentFault, UnknownFormat
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.inspection import inspect, segments_size
from transporter.log.lock import owner_of
from transporter.log.meta import DURABLE, published_offset
from transporter.log.segment import segment_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    Make = Callable[..., pa.RecordBatch]


def listing(directory: Path) -> dict[str, bytes]:
    """Return every file in *directory* with its content."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_a_running_engine_is_seen_up_to_its_durable_offset(tmp_path: Path, batch: Make) -> None:
    """Published entries can be read beside an engine and are confirmed (Invariant 12)."""
    with CommitLog.open(tmp_path) as log:
        assert (inspect(tmp_path).last, inspect(tmp_path).confirmed) == (-1, -1)
        log.append(batch(3), "r")
        unsynced(log, batch(3))
        found = inspect(tmp_path)
        assert (found.first, found.last, found.confirmed) == (0, 2, 2)
        assert (found.owner, found.log_id, found.epoch) == (str(os.getpid()), log.log_id, 1)


def test_a_log_that_was_left_cleanly_is_confirmed_to_its_end(tmp_path: Path, batch: Make) -> None:
    """After a clean stop all entries are confirmed, and the log has no owner."""
    with CommitLog.open(tmp_path) as log:
        log.append(batch(3), "r")
    found = inspect(tmp_path)
    assert (found.last, found.confirmed, found.owner) == (2, 2, None)


class Hasty(RealFileSystem):
    """A disk whose first listing names a segment that has been removed."""

    def __init__(self, vanished: str) -> None:
        self._vanished, self._listings = vanished, 0

    def names(self, directory: Path) -> list[str]:
        """Return the names of the directory, and in the first listing one more."""
        self._listings += 1
        gone = [self._vanished] if self._listings == 1 else []
        return [*super().names(directory), *gone]

    def is_file(self, path: Path) -> bool:
        """Return true also for the additional name, which was a file when it was listed."""
        return path.name == self._vanished or super().is_file(path)


def test_a_last_segment_that_goes_meanwhile_is_looked_for_anew(tmp_path: Path, batch: Make) -> None:
    """A last segment that vanishes during an inspection is looked up again."""
    with CommitLog.open(tmp_path) as log:
        log.append(batch(3), "r")
    assert inspect(tmp_path, files=Hasty(segment_name(7))).last == 2


def test_the_tail_of_a_crashed_engine_is_unconfirmed(tmp_path: Path, batch: Make) -> None:
    """Without an engine, entries above the floor are readable and marked (Invariant 12)."""
    log = CommitLog.open(tmp_path)
    log.append(batch(3), "r")
    log.append(batch(3), "r")
    unsynced(log, batch(3))
    crash(log)
    found = inspect(tmp_path)
    assert (found.last, found.confirmed) == (8, 5)
    # An offset log may prove more than the frames do.
    assert inspect(tmp_path, proved=8).confirmed == 8


def test_a_torn_tail_is_not_shown(tmp_path: Path, batch: Make) -> None:
    """Frames that the next open will cut are not shown."""
    log = CommitLog.open(tmp_path)
    log.append(batch(3), "r")
    torn = unsynced(log, batch(3))
    unsynced(log, batch(3))
    crash(log)
    damage(tmp_path, torn.payload_byte)
    assert inspect(tmp_path).last == 2


def test_looking_changes_nothing(tmp_path: Path, batch: Make) -> None:
    """An inspection of a crashed log recovers nothing, which is left to the engine."""
    log = CommitLog.open(tmp_path)
    log.append(batch(3), "r")
    torn = unsynced(log, batch(3))
    crash(log)
    damage(tmp_path, torn.payload_byte)
    before = listing(tmp_path)
    inspect(tmp_path)
    assert listing(tmp_path) == before


def test_an_engine_can_start_while_somebody_looks(tmp_path: Path) -> None:
    """An inspection of the owner does not keep the lock."""
    CommitLog.open(tmp_path).close()
    assert owner_of(tmp_path) is None
    with CommitLog.open(tmp_path):
        assert owner_of(tmp_path) == str(os.getpid())


def test_a_published_mark_that_is_torn_is_not_believed(tmp_path: Path, batch: Make) -> None:
    """A mark with a wrong checksum is ignored, and the frames count instead."""
    with CommitLog.open(tmp_path) as log:
        log.append(batch(3), "r")
        log.append(batch(3), "r")
        path = tmp_path / DURABLE
        data = bytearray(path.read_bytes())
        data[17] ^= 1
        path.write_bytes(data)
        assert published_offset(Disk(), tmp_path) is None
        assert (inspect(tmp_path).last, inspect(tmp_path).confirmed) == (5, 2)
        path.write_bytes(data[:11])
        assert published_offset(Disk(), tmp_path) is None
        path.unlink()
        assert published_offset(Disk(), tmp_path) is None
        path.write_bytes(b"")


def test_segments_are_listed_with_their_size(tmp_path: Path, batch: Make) -> None:
    """Each segment is named with its base, its bytes and the time of its creation."""
    with CommitLog.open(tmp_path, segment_bytes=1, clock=lambda: 1234) as log:
        for _ in range(3):
            log.append(batch(2), "r")
        found = inspect(tmp_path)
        assert found.size == segments_size(tmp_path)
    found = inspect(tmp_path)
    assert [segment.base for segment in found.segments] == [0, 2, 4]
    assert [segment.created_at for segment in found.segments] == [1234] * 3
    for segment in found.segments:
        assert segment.size == (tmp_path / segment.name).stat().st_size
    assert found.size == sum(segment.size for segment in found.segments)


@pytest.mark.parametrize("present", ["nothing", "folder", "lock"])
def test_where_no_log_is_that_is_said(tmp_path: Path, present: str) -> None:
    """A folder without a log, or a missing folder, is an error that names the setting."""
    directory = tmp_path / "log"
    if present != "nothing":
        directory.mkdir()
    if present == "lock":
        (directory / "lock").touch()
    with pytest.raises(EnvironmentFault, match=r"no transporter log here.*log\.dir"):
        inspect(directory)


def test_a_meta_file_that_does_not_match_its_checksum_is_corrupt(tmp_path: Path) -> None:
    """A meta file with a wrong checksum is corrupt."""
    CommitLog.open(tmp_path).close()
    path = tmp_path / "meta"
    path.write_bytes(path.read_bytes().replace(b'"epoch": 1', b'"epoch": 2'))
    with pytest.raises(Corrupt, match="meta"):
        inspect(tmp_path)


def test_a_meta_file_of_another_version_is_refused_as_such(tmp_path: Path) -> None:
    """An unknown version is named and not taken for damage (Invariant 19)."""
    from crc32c import crc32c  # noqa: PLC0415

    CommitLog.open(tmp_path).close()
    path = tmp_path / "meta"
    body = path.read_bytes().partition(b"\n")[0].replace(b'"format": 1', b'"format": 8')
    path.write_bytes(b"%s\n%08x\n" % (body, crc32c(body)))
    with pytest.raises(UnknownFormat, match="version 8"):
        inspect(tmp_path)


def test_damage_at_the_durable_end_is_named(tmp_path: Path, batch: Make) -> None:
    """Damage that would stop an engine's start is reported."""
    with CommitLog.open(tmp_path) as log:
        log.append(batch(3), "r")
    damage(tmp_path, 100)
    with pytest.raises(Corrupt, match=segment_name(0)):
        inspect(tmp_path)
