"""Setting many entries aside at once: what is held, what is synced, and where it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from transporter.engine.parking import Parking
from transporter.engine.protocol import Slice
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.reader import LogReader
from transporter.message import Message, messages_to_batch
from transporter.offsets.health import mend, verify
from transporter.offsets.offset_log import OffsetLog
from transporter.offsets.parked import ParkedStore, Reason, parked_path
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COUNT = 300


class World:
    """A log of entries of two keys in turn, and a route that has parked the first of one."""

    def __init__(self, folder: Path) -> None:
        self.log = CommitLog.open(folder)
        keys = (b"held", b"free")
        messages = [Message("n", b"x", key=keys[number % 2]) for number in range(COUNT)]
        self.log.append(messages_to_batch(messages), "in", "1")
        self.reader, self.offsets = LogReader(folder), OffsetLog(folder, "out")
        self.parking = Parking(self.config(), self.log, self.reader, self.offsets, lambda: 7)
        self.parking.park(0, "no", 1)

    @staticmethod
    def config(entries: int = 10_000, size: int = 1 << 30) -> Any:
        """Return settings of a route with this park limit."""
        limit = SimpleNamespace(entries=entries, bytes=size)
        return SimpleNamespace(namespace="", park_order="key", park_limit=limit)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Give a log and its route."""
    made = World(tmp_path / "log")
    yield made
    made.reader.close()
    made.offsets.close()
    made.log.close()


def test_several_are_parked_with_one_sync_of_their_folder_and_one_of_their_offsets(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a key holds back costs a sync of its own file each, and nothing else each."""
    folders: list[Path] = []
    synced: list[int] = []
    original, sync = RealFileSystem.sync_directory, OffsetLog._sync

    def sync_directory(self: RealFileSystem, directory: Path) -> None:
        folders.append(directory)
        original(self, directory)

    def offsets_synced(self: OffsetLog) -> None:
        synced.append(len(world.parking))
        sync(self)

    monkeypatch.setattr(RealFileSystem, "sync_directory", sync_directory)
    monkeypatch.setattr(OffsetLog, "_sync", offsets_synced)
    left = world.parking.screen(Slice(1, 100, 0))
    assert left == Slice(1, 100, 0, without=tuple(range(2, 101, 2)))
    assert len(folders) == 1
    assert synced == [51]
    assert world.offsets.state.above[0] == Range(2, 2, "parked")


def test_a_slice_ends_after_so_many_that_were_parked(world: World) -> None:
    """A route looks what it is asked to do before it parks more of a slice."""
    left = world.parking.screen(Slice(1, COUNT - 1, 0))
    assert left == Slice(1, 201, 0, without=tuple(range(2, 202, 2)))
    assert len(world.parking) == 101


@pytest.mark.parametrize(("entries", "last"), [(4, 7), (2, 3), (1, 1)])
def test_a_slice_ends_before_what_finds_no_room(world: World, entries: int, last: int) -> None:
    """Up to the limit everything is parked, and nothing behind it is handed over."""
    world.parking.configure(world.config(entries))
    left = world.parking.screen(Slice(1, 50, 0))
    assert left == Slice(1, last, 0, without=tuple(range(2, last, 2)))
    assert world.parking.full
    assert world.parking.screen(Slice(last + 1, 50, 0)) is None


def test_the_room_in_bytes_is_kept_for_several_at_once(world: World) -> None:
    """The limit in bytes counts what is parked together with an entry, too."""
    one = world.parking._store.size
    world.parking.configure(world.config(size=3 * one))
    left = world.parking.screen(Slice(1, 50, 0))
    assert left is not None
    assert len(world.parking) in (3, 4)
    assert left.last < 10


def test_what_is_skipped_goes_with_one_sync(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """To give thousands up takes no thousands of syncs."""
    world.parking.screen(Slice(1, 100, 0))
    folders: list[Path] = []
    monkeypatch.setattr(RealFileSystem, "sync_directory", lambda _, folder: folders.append(folder))
    assert len(world.parking.skip(range(COUNT))) == 51
    assert (len(folders), len(world.parking), world.parking.known) == (1, 0, frozenset())


def reason_of(world: World) -> Reason:
    """Return why the first entry is parked."""
    return ParkedStore.read(world.offsets.folder, 0).reason


def test_an_entry_that_fails_again_is_its_readers_still(world: World) -> None:
    """The log may not hold it any more, and its source must not be told of it."""
    before = reason_of(world)
    world.parking.failed_again(0, "no again")
    reason = reason_of(world)
    assert (before.reader, reason.reader) == ("in", "in")
    assert (reason.error, reason.attempts, reason.behind) == ("no again", 2, None)


def test_an_entry_that_is_taken_from_the_log_again_is_its_readers_still(world: World) -> None:
    """A repair knows it as parking does."""
    path = parked_path(world.offsets.folder, 0)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    for each in (world.reader, world.offsets, world.log):
        each.close()
    mend(world.log.directory, verify(world.log.directory), 7)
    assert reason_of(world).reader == "in"
