"""A verification of every byte of a log while an engine runs on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from compaction_tools import Frame, append_segments, letters

from transporter.errors import EnvironmentFault
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.operator_pauses import PAUSED, PausedReaders, read_paused
from transporter.message import messages_to_batch, with_offsets
from transporter.offsets.offset_log import OffsetLog
from transporter.offsets.parked import ParkedEntry, ParkedStore, ParkReason
from transporter.offsets.verify_repair import repair_log, verify

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.log.filesystem import File


class Vanishing(RealFileSystem):
    """The real disk, on which a file is removed at its opening, *often* times."""

    def __init__(self, suffix: str, often: int) -> None:
        self.suffix, self.left = suffix, often

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        if path.suffix == self.suffix and self.left:
            self.left -= 1
            path.unlink()
        return super().open(path, write=write, create=create)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a log of eight segments with a route that has parked an entry."""
    with CommitLog.open(tmp_path, compression=None) as log:
        append_segments(log, [[Frame(letters("AAB"))] for _ in range(8)])
        offsets = OffsetLog(tmp_path, "out")
        entries = with_offsets(messages_to_batch(letters("A")), 1, 0)
        ParkedStore(offsets.folder).park(ParkedEntry(1, entries, ParkReason("no", 1, 0)))
        offsets.close()
    return tmp_path


def test_segments_that_go_meanwhile_are_no_damage(directory: Path) -> None:
    """Segments that retention removes meanwhile are not damage, and the others are verified."""
    found = verify(directory, files=Vanishing(".log", 2))
    assert (found.is_sound, found.segments) == (True, 6)


def test_a_log_that_never_holds_still_is_told_of(directory: Path) -> None:
    """A log that changes all the time is an error, not an endless loop."""
    with pytest.raises(EnvironmentFault, match="No such file"):
        verify(directory, files=Vanishing(".log", 7))


def test_a_parked_entry_that_is_delivered_meanwhile_is_no_damage(directory: Path) -> None:
    """A parked entry whose file is removed meanwhile is not damage."""
    assert verify(directory, files=Vanishing(".entry", 1)).is_sound


def test_a_damaged_list_of_paused_readers_is_found_and_mended(directory: Path) -> None:
    """A damaged pause list stops the start, and its repair keeps a copy and pauses no reader."""
    PausedReaders(directory).set_paused("orders", paused=True)
    assert verify(directory).is_sound
    path = directory / PAUSED
    damaged = path.read_bytes().replace(b"orders", b"ordera")
    path.write_bytes(damaged)
    before = {each: each.read_bytes() for each in directory.glob("*.log")}
    found = verify(directory)
    (damage,) = found.damages
    assert (damage.file, damage.is_empty) == (str(path), True)
    mended = repair_log(directory, found, 0)
    assert mended.kept == (PAUSED,)
    assert (mended.quarantine / PAUSED).read_bytes() == damaged
    assert {each: each.read_bytes() for each in directory.glob("*.log")} == before
    assert verify(directory).is_sound
    assert read_paused(directory) == frozenset()
