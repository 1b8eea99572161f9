"""The parked entries of one route: written in bulk, found by key, and read by other threads."""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING

import pytest
from disks.faulty import Fault, FaultyDisk

from transporter.errors import Corrupt, LogFull, LogPoisoned
from transporter.log.filesystem import RealFileSystem
from transporter.log.format import FRAME_HEADER_BYTES
from transporter.message import Message, messages_to_batch, with_offsets
from transporter.offsets.parked import FOLDER, ParkedEntry, ParkedStore, ParkReason, parked_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEYS = (b"a", b"b", None)
PATIENCE = 30.0


def entries(count: int, first: int = 0) -> list[ParkedEntry]:
    """Return *count* entries to park, whose keys go round :data:`KEYS`."""
    messages = [Message("n", b"data", KEYS[n % 3]) for n in range(first, first + count)]
    batch = with_offsets(messages_to_batch(messages), first, 1)
    return [ParkedEntry(first + n, batch.slice(n, 1), ParkReason("no", 1, 0)) for n in range(count)]


def test_many_are_parked_with_one_sync_of_the_folder(tmp_path: Path) -> None:
    """Each file is synced, and the folder once, and a new store finds all of them."""
    disk = FaultyDisk(RealFileSystem())
    store = ParkedStore(tmp_path, disk)
    store.park_all(entries(1))
    disk.calls.clear()
    store.park_all(entries(20, 1))
    kinds = [call.kind for call in disk.calls]
    assert (kinds.count("sync"), kinds.count("sync_directory")) == (20, 1)
    assert kinds.index("rename") > max(n for n, kind in enumerate(kinds) if kind == "sync")
    assert ParkedStore(tmp_path).offsets() == list(range(21))
    assert store.known_offsets == frozenset(range(21))


def test_files_of_other_programs_are_no_parked_entries(tmp_path: Path) -> None:
    """A copy that a file manager or an archive has made beside an entry has another name."""
    ParkedStore(tmp_path).park_all(entries(2))
    (name, _) = sorted(path.name for path in (tmp_path / FOLDER).iterdir())
    for other in (f"._{name}", name.replace(".", " (copy)."), "-1.entry", "\u0661.entry"):
        (tmp_path / FOLDER / other).touch()
    assert ParkedStore(tmp_path).offsets() == [0, 1]


@pytest.mark.parametrize("at", [1, 5])
def test_what_finds_no_room_parks_nothing(tmp_path: Path, at: int) -> None:
    """On a full disk no entry is parked, and no file stays behind (Invariant 14)."""
    disk = FaultyDisk(RealFileSystem())
    store = ParkedStore(tmp_path, disk)
    store.park_all(entries(2))
    disk.strike(Fault(at, errno.ENOSPC, frozenset({"pwrite"})))
    with pytest.raises(LogFull):
        store.park_all(entries(6, 2))
    assert store.known_offsets == {0, 1}
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == [
        "00000000000000000000.entry",
        "00000000000000000001.entry",
    ]
    store.park_all(entries(6, 2))
    assert len(store) == 8


def test_a_sync_that_fails_is_final(tmp_path: Path) -> None:
    """A failed sync is final, because its outcome is unknown (Invariant 13)."""
    disk = FaultyDisk(RealFileSystem())
    store = ParkedStore(tmp_path, disk)
    disk.strike(Fault(2, errno.EIO, frozenset({"sync"})))
    with pytest.raises(LogPoisoned):
        store.park_all(entries(3))
    assert len(store) == 0


def test_keys_are_found_through_parking_and_removing(tmp_path: Path) -> None:
    """The earliest parked offset of each key is always known."""
    store = ParkedStore(tmp_path)
    store.park_all(entries(9))
    assert store.keys() == {b"a": 0, b"b": 1}
    assert (store.first_of(b"a"), store.first_of(b"z"), store.first_of(None)) == (0, None, None)
    store.remove_all([0, 3, 2])
    assert store.keys() == {b"a": 6, b"b": 1}
    store.park_all(entries(1))
    assert store.first_of(b"a") == 0
    store.park_all(entries(1))  # again: it replaces the first copy
    store.remove(0)
    assert store.first_of(b"a") == 6
    again = ParkedStore(tmp_path)
    assert again.keys() == store.keys()
    assert again.known_offsets == store.known_offsets
    store.remove_all(sorted(store.known_offsets))
    assert (store.size, len(store), store.keys()) == (0, 0, {})


def test_what_is_known_is_read_while_entries_come_and_go(tmp_path: Path) -> None:
    """Readers in other threads get whole sets, copied only after a change."""
    store = ParkedStore(tmp_path)
    store.park_all(entries(30))
    assert store.known_offsets is store.known_offsets
    seen: list[frozenset[int]] = []
    ended, looked = threading.Event(), threading.Event()

    def look() -> None:
        while not ended.is_set():
            seen.append(store.known_offsets)
            looked.set()

    thread = threading.Thread(target=look)
    thread.start()
    for offset in range(30):
        looked.clear()
        assert looked.wait(PATIENCE)
        store.remove(offset)
    ended.set()
    thread.join()
    assert store.known_offsets == frozenset()
    assert all(each == frozenset(range(min(each, default=30), 30)) for each in seen)
    assert len({*seen}) > 1


def test_an_entry_that_is_parked_again_is_known_throughout(tmp_path: Path) -> None:
    """An entry parked again stays known, or its source would be acknowledged (Invariant 11)."""
    store = ParkedStore(tmp_path)
    (entry,) = entries(1, first=7)
    store.park(entry)
    seen: list[bool] = []
    store._lock = Watching(lambda: seen.append(7 in store.key_by_offset))  # type: ignore[assignment]
    store.park(entry)
    assert seen
    assert all(seen)


class Watching:
    """A lock that checks the state visible to others at each release."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._lock, self._look = threading.Lock(), look

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._look()
        self._lock.release()


def test_a_reason_is_read_without_the_entry(tmp_path: Path) -> None:
    """Damage of the payload is nothing to it, and its own is."""
    ParkedStore(tmp_path).park_all(entries(1))
    path = parked_path(tmp_path, 0)
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    assert ParkedStore.read_reason(tmp_path, 0) == ParkReason("no", 1, 0)
    data[FRAME_HEADER_BYTES + 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(Corrupt, match="checksum"):
        ParkedStore.read_reason(tmp_path, 0)
    path.write_bytes(b"x")
    with pytest.raises(Corrupt, match="not a parked entry"):
        ParkedStore.read_reason(tmp_path, 0)
