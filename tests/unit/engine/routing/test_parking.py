"""Parking of many entries at once: which are parked, which files are synced, and the limits."""

from __future__ import annotations

import errno
import os
import signal
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from transporter.engine.routing.parking import Parking
from transporter.errors import LogFull
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.reader import LogReader
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import OffsetLog
from transporter.offsets.parked import ParkedStore, ParkReason, parked_path, skip_entries
from transporter.offsets.state import Range
from transporter.offsets.verify_repair import repair_log, verify
from transporter.protocol.messages import Slice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

COUNT = 300


class World:
    """A log of entries of two alternating keys, and a route that has parked the first of one."""

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
    """Yield a log and its route."""
    made = World(tmp_path / "log")
    yield made
    made.reader.close()
    made.offsets.close()
    made.log.close()


def test_several_are_parked_with_one_sync_of_their_folder_and_one_of_their_offsets(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each entry blocked by its key costs one sync of its own file, and no other sync."""
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
    left = world.parking.park_followers(Slice(1, 100, 0))
    assert left == Slice(1, 100, 0, without=tuple(range(2, 101, 2)))
    assert len(folders) == 1
    assert synced == [51]
    assert world.offsets.state.above[0] == Range(2, 2, "parked")


def test_a_slice_ends_after_so_many_that_were_parked(world: World) -> None:
    """A slice ends after a bounded number of parked entries, so that errands can run."""
    left = world.parking.park_followers(Slice(1, COUNT - 1, 0))
    assert left == Slice(1, 201, 0, without=tuple(range(2, 202, 2)))
    assert len(world.parking) == 101


@pytest.mark.parametrize(("entries", "last"), [(4, 7), (2, 3), (1, 1)])
def test_a_slice_ends_before_what_finds_no_room(world: World, entries: int, last: int) -> None:
    """Entries are parked up to the limit, and the slice ends there."""
    world.parking.configure(world.config(entries))
    left = world.parking.park_followers(Slice(1, 50, 0))
    assert left == Slice(1, last, 0, without=tuple(range(2, last, 2)))
    assert world.parking.is_full
    assert world.parking.park_followers(Slice(last + 1, 50, 0)) is None


def test_the_room_in_bytes_is_kept_for_several_at_once(world: World) -> None:
    """The limit in bytes counts all entries that are parked together."""
    one = world.parking.store.size
    world.parking.configure(world.config(size=3 * one))
    left = world.parking.park_followers(Slice(1, 50, 0))
    assert left is not None
    assert len(world.parking) in (3, 4)
    assert left.last < 10


def test_what_is_skipped_goes_with_one_sync(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of entries are skipped with one sync."""
    world.parking.park_followers(Slice(1, 100, 0))
    folders: list[Path] = []
    monkeypatch.setattr(RealFileSystem, "sync_directory", lambda _, folder: folders.append(folder))
    assert len(world.parking.skip(range(COUNT))) == 51
    assert (len(folders), len(world.parking), world.parking.parked_offsets) == (1, 0, frozenset())


def killed(do: Callable[[], object], owner: type, name: str, *, before: bool) -> None:
    """Call *do* in a process that is killed *before*, or after, the call *name* of *owner*."""
    child = os.fork()
    if child == 0:
        call = getattr(owner, name)

        def dying(*arguments: Any, **more: Any) -> None:
            if not before:
                call(*arguments, **more)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(owner, name, dying)
        do()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def no_room(*_: object) -> None:
    """Fail for want of disk space."""
    raise OSError(errno.ENOSPC, "no space left")


def reopened(world: World) -> tuple[list[int], list[int], tuple[int, ...]]:
    """Reopen the route and deliver its retries. Return those, the entries left, and the retries."""
    delivered = list[int]()
    with OffsetLog(world.log.directory, "out") as offsets:
        parking = Parking(world.config(), world.log, world.reader, offsets, lambda: 7)
        while (offset := parking.next_retry()) is not None:
            delivered.append(offset)
            parking.remove_delivered(offset)
        return delivered, sorted(parking.parked_offsets), offsets.state.retries


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("owner", "name"),
    [(OffsetLog, "request_followers"), (ParkedStore, "remove_all"), (OffsetLog, "finish_retry")],
)
def test_a_kill_at_a_retry_leaves_nothing_behind_what_is_gone(
    world: World, owner: type, name: str, *, before: bool
) -> None:
    """After a kill at a retry the blocked entries follow, and the retried one at most repeats."""
    world.parking.park_followers(Slice(1, 7, 0))
    world.offsets.request_retries([0])
    killed(partial(world.parking.remove_delivered, 0), owner, name, before=before)
    delivered, left, retries = reopened(world)
    assert delivered in ([2, 4, 6], [0, 2, 4, 6])
    assert (left, retries) == ([], ())


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("owner", "name"),
    [(OffsetLog, "begin_skip"), (ParkedStore, "remove_all"), (OffsetLog, "end_skip")],
)
def test_a_kill_at_a_skip_delivers_nothing_that_was_skipped(
    world: World, owner: type, name: str, *, before: bool
) -> None:
    """A kill at a skip leaves the skip either undone or done."""
    world.parking.park_followers(Slice(1, 7, 0))
    killed(partial(world.parking.skip, [0]), owner, name, before=before)
    undone = (owner, name, before) == (OffsetLog, "begin_skip", True)
    assert reopened(world) == (([], [0, 2, 4, 6], ()) if undone else ([2, 4, 6], [], ()))


def test_only_what_is_named_is_retried_or_skipped(world: World) -> None:
    """With ``only`` the blocked entries stay, and a later request for all of them still counts."""
    world.parking.park_followers(Slice(1, 9, 0))
    world.offsets.request_retries([0], only=True)
    assert world.parking.store.waiting_behind([0]) == [2, 4, 6, 8]
    assert (world.parking.next_retry(), world.parking.remove_delivered(0)) == (0, None)
    assert world.parking.next_retry() is None
    assert skip_entries(world.parking.store, world.offsets, [2], only=True) == [2]
    assert world.parking.next_retry() is None
    world.offsets.request_retries([4], only=True)
    world.offsets.request_retries([4])
    assert reopened(world) == ([4, 6, 8], [], ())


def test_a_skip_in_the_middle_lets_nobody_past_the_head(world: World) -> None:
    """Entries behind a skipped one follow only if no earlier one is parked (Invariant 9)."""
    world.parking.park_followers(Slice(1, 7, 0))
    world.parking.skip([2])
    assert reopened(world) == ([], [0, 4, 6], ())


def test_those_behind_a_damaged_copy_follow_it_too(world: World) -> None:
    """Entries that name a damaged copy follow it, although its key is lost."""
    world.parking.park_followers(Slice(1, 5, 0))
    parked_path(world.offsets.folder, 0).write_bytes(b"nonsense")
    store = ParkedStore(world.offsets.folder, lenient=True)
    assert store.waiting_behind([0]) == [2, 4]
    assert skip_entries(store, world.offsets, [0]) == [0]
    assert reopened(world) == ([2, 4], [], ())


def test_what_a_failing_disk_keeps_of_a_skip_is_not_delivered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A route waits for a failing disk, and then delivers the entries behind the skipped one."""
    world.parking.park_followers(Slice(1, 5, 0))
    with monkeypatch.context() as patched:
        patched.setattr(RealFileSystem, "remove", no_room)
        for act in (lambda: world.parking.skip([0]), world.parking.next_retry):
            with pytest.raises(LogFull):
                act()
    assert world.parking.next_retry() == 2
    assert world.parking.parked_offsets == {2, 4}


def test_without_room_a_delivered_entry_is_kept_until_those_behind_it_may_follow(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk a delivered entry repeats once, and its followers come next (Invariant 14)."""
    world.parking.park_followers(Slice(1, 5, 0))
    world.offsets.request_retries([0])
    with monkeypatch.context() as patched:
        patched.setattr(OffsetLog, "_append", no_room)
        with pytest.raises(LogFull):
            world.parking.remove_delivered(0)
        with pytest.raises(LogFull):
            world.offsets.write_pending()
    world.offsets.write_pending()
    assert reopened(world) == ([0, 2, 4], [], ())


def reason_of(world: World) -> ParkReason:
    """Return why the first entry is parked."""
    return ParkedStore.read_entry(world.offsets.folder, 0).reason


def test_an_entry_that_fails_again_is_its_readers_still(world: World) -> None:
    """An entry that fails again keeps its reader, so that its source is not acknowledged."""
    before = reason_of(world)
    world.parking.record_failure(0, "no again")
    reason = reason_of(world)
    assert (before.reader, reason.reader) == ("in", "in")
    assert (reason.error, reason.attempts, reason.behind) == ("no again", 2, None)


def test_an_entry_that_is_taken_from_the_log_again_is_its_readers_still(world: World) -> None:
    """A repair that takes an entry from the log again keeps its reader."""
    path = parked_path(world.offsets.folder, 0)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    for each in (world.reader, world.offsets, world.log):
        each.close()
    repair_log(world.log.directory, verify(world.log.directory), 7)
    assert reason_of(world).reader == "in"
