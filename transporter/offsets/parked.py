"""Parked entries: copies of entries that a route could not deliver, each with its error.

One file per entry: an ordinary frame of the log with the reason in its extension. A copy
is durable before anything later of its shard is delivered, and pins nothing: the log may
compact parked entries.
"""

from __future__ import annotations

import json
import re
import threading
from bisect import bisect_left, insort
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Self

from crc32c import crc32c

from transporter.errors import Corrupt, EnvironmentFault
from transporter.log import format as layout
from transporter.log.filesystem import (
    RealFileSystem,
    make_directory,
    open_file,
    replace_all_durably,
    sync_directory,
    translate_os_errors,
)
from transporter.message import batch_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    import pyarrow as pa

    from transporter.errors import TransporterError
    from transporter.log.filesystem import FileSystem
    from transporter.offsets.offset_log import OffsetLog

FOLDER: Final = "parked"
_SUFFIX: Final = ".entry"
_NUMBER: Final = re.compile("[0-9]{20}")
_MAX_BYTES: Final = layout.FRAME_HEADER_BYTES + layout.MAX_EXTENSION + layout.MAX_PAYLOAD
_MAX_ERROR: Final = 4096
_WRONG_CHECKSUM: Final = "a parked entry does not match its checksum"


@dataclass(frozen=True, slots=True)
class ParkReason:
    """The reason why an entry is parked.

    Attributes:
        attempts: the number of its own failures.
        parked_at: the time in µs UTC.
        behind: the earlier entry of its key that it waits for, ``None`` if it failed itself.
        reader: the reader that logged the entry, which the log itself may not hold any more.
            ``None`` in copies of earlier versions.

    """

    error: str
    attempts: int
    parked_at: int
    behind: int | None = None
    reader: str | None = None

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode the reason in a parked file, or raise ``ValueError`` if it is not one."""
        try:
            found = cls(**json.loads(data))
        except (TypeError, RecursionError):
            raise ValueError("its fields are not those of a reason") from None
        numbers = (found.attempts, found.parked_at, found.behind or 0)
        texts = (found.error, found.reader or "")
        if {*map(type, numbers)} != {int} or {*map(type, texts)} != {str}:
            raise ValueError("its fields are not those of a reason")
        return found


@dataclass(frozen=True, slots=True)
class ParkedEntry:
    """A parked entry: its batch of one row, and the reason."""

    offset: int
    entries: pa.RecordBatch
    reason: ParkReason

    @property
    def key(self) -> bytes | None:
        """The entry's key."""
        return self.entries.column("key")[0].as_py()  # type: ignore[no-any-return]

    @classmethod
    def decode(cls, data: bytes, file: str) -> Self:
        """Decode a parked file.

        Raises:
            Corrupt: it is damaged.

        """
        frame = layout.FrameHeader.decode(data, 0, 0)
        if frame is None or len(data) < frame.payload_byte + frame.payload_length:
            raise Corrupt("not a parked entry", file, 0)
        extension = data[frame.extension_byte : frame.payload_byte]
        payload = data[frame.payload_byte : frame.payload_byte + frame.payload_length]
        reason = _decode_reason(frame, extension, file)
        if crc32c(payload) != frame.payload_crc:
            raise Corrupt(_WRONG_CHECKSUM, file, 0, frame.first)
        return cls(frame.first, layout.decode_entries(payload, frame, file), reason)

    def encode(self) -> bytes:
        """Return the bytes of the parked file."""
        short = asdict(self.reason) | {"error": self.reason.error[:_MAX_ERROR]}
        extension = json.dumps(short).encode()
        payload = layout.encode_payload(self.entries, "lz4")
        header = layout.FrameHeader(
            extension_length=len(extension),
            payload_length=len(payload),
            entries_bytes=batch_bytes(self.entries),
            segment_id=0,
            byte=0,
            first=self.offset,
            last=self.offset,
            count=1,
            extension_crc=crc32c(extension),
            logged_at=self.reason.parked_at,
            epoch=0,
            durable=self.offset,
            payload_crc=crc32c(payload),
        )
        return layout.encode_frame(header, extension, payload)


def _decode_reason(frame: layout.FrameHeader, extension: bytes, file: str) -> ParkReason:
    if crc32c(extension) != frame.extension_crc:
        raise Corrupt(_WRONG_CHECKSUM, file, 0, frame.first)
    try:
        return ParkReason.decode(extension)
    except ValueError as error:
        problem = f"the reason why an entry is parked cannot be read: {error}"
        raise Corrupt(problem, file, 0, frame.first) from error


def parked_path(folder: Path, offset: int) -> Path:
    """Return the path of a parked entry of the route in *folder*."""
    return folder / FOLDER / f"{offset:020d}{_SUFFIX}"


def parked_offsets(folder: Path, files: FileSystem) -> list[int]:
    """Return the parked offsets of the route in *folder*, ascending."""
    with translate_os_errors(folder):
        names = files.names(folder / FOLDER)
    numbers = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
    # Copies that other programs have made beside them have other names.
    return [int(each) for each in numbers if _NUMBER.fullmatch(each)]


class ParkedStore:
    """The parked entries of one route. Not thread-safe, but other processes may read them."""

    @classmethod
    def read_entry(cls, folder: Path, offset: int, files: FileSystem | None = None) -> ParkedEntry:
        """Return one parked entry of the route in *folder*."""
        path = parked_path(folder, offset)
        with (
            translate_os_errors(path, reading=True),
            open_file(files or RealFileSystem(), path) as file,
        ):
            return ParkedEntry.decode(file.pread(min(file.size(), _MAX_BYTES), 0), str(path))

    @classmethod
    def read_reason(cls, folder: Path, offset: int) -> ParkReason:
        """Return why the route in *folder* has parked an entry, without reading its payload."""
        path = parked_path(folder, offset)
        with translate_os_errors(path, reading=True), open_file(RealFileSystem(), path) as file:
            frame = layout.FrameHeader.decode(file.pread(layout.FRAME_HEADER_BYTES, 0), 0, 0)
            if frame is None:
                raise Corrupt("not a parked entry", str(path), 0)
            extension = file.pread(frame.extension_length, frame.extension_byte)
            return _decode_reason(frame, extension, str(path))

    def __init__(
        self,
        folder: Path,
        files: FileSystem | None = None,
        *,
        lenient: bool = False,
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        """Read the parked entries in *folder*, the route's own.

        An unreadable entry raises its error. A *lenient* store adds it to ``damaged`` instead, as
        an entry that can be removed. In an engine *guard* raises ``LockLost`` once the files may
        be another engine's (Invariant 12).
        """
        self._files = files or RealFileSystem()
        self._folder, self._guard = folder, guard
        self._has_folder = False
        self.key_by_offset: dict[int, bytes | None] = {}
        """The key of each readable entry. Changed by its owner's thread only."""
        self._sizes: dict[int, int] = {}
        self._size = 0
        self._offsets_by_key: dict[bytes, list[int]] = {}
        """The parked offsets of each key, ascending."""
        self._waits_for: dict[int, int] = {}
        """The entries that wait for an earlier one of their key, and its offset."""
        self._lock = threading.Lock()
        self._known_offsets: frozenset[int] | None = None
        self.damaged: dict[int, TransporterError] = {}
        """The errors of unreadable entries."""
        for offset in self.offsets():
            try:
                self._add(self.load(offset))
            except (Corrupt, EnvironmentFault) as error:
                if not lenient:
                    raise
                self.damaged[offset] = error

    def __len__(self) -> int:
        return len(self.key_by_offset)

    @property
    def known_offsets(self) -> frozenset[int]:
        """The parked offsets. Any thread may read them.

        Built on access, so that parking many entries needs no copy for each of them.
        """
        with self._lock:
            if self._known_offsets is None:
                self._known_offsets = frozenset([*self.key_by_offset, *self.damaged])
            return self._known_offsets

    def __contains__(self, offset: int) -> bool:
        return offset in self.key_by_offset

    def have_same_key(self, one: int, other: int) -> bool:
        """Return whether two entries are parked and have the same key."""
        key = self.key_by_offset.get(one)
        return key is not None and key == self.key_by_offset.get(other)

    def first_of_same_key(self, offset: int) -> int:
        """Return the earliest parked offset of the key of the one parked at *offset*."""
        first = self.first_of(self.key_by_offset[offset])
        return offset if first is None else first

    def followers(self, removed: Collection[int]) -> list[int]:
        """Return the entries that may be delivered next once those at *removed* are gone.

        Each is then the first of its key, and was parked only because of one of those.
        """
        # The key of a damaged entry is unknown, but the entries that wait for it name it.
        damaged = not self.damaged.keys().isdisjoint(removed)
        keys = (
            self._offsets_by_key.keys()
            if damaged
            else {self.key_by_offset.get(offset) for offset in removed}
        )
        heads = [(key, self._offsets_by_key[key][0]) for key in keys if key is not None]
        heads = [
            (key, head)
            for key, head in heads
            if head in removed or self._waits_for.get(head) in removed
        ]
        rest = (
            next((o for o in self._offsets_by_key[key] if o not in removed), None)
            for key, _ in heads
        )
        return sorted(offset for offset in rest if offset in self._waits_for)

    def waiting_behind(self, offsets: Collection[int]) -> list[int]:
        """Return the other entries that wait behind those at *offsets*. Thread-safe."""
        with self._lock:
            first: dict[bytes | None, int] = {}
            for offset in offsets:
                key = self.key_by_offset.get(offset)
                first[key] = min(offset, first.get(key, offset))
            return sorted(
                offset
                for offset, cause in self._waits_for.items()
                if offset not in offsets
                and (cause in offsets or offset > first.get(self.key_by_offset[offset], offset))
            )

    @property
    def size(self) -> int:
        """Bytes of the parked files."""
        return self._size

    def offsets(self) -> list[int]:
        """Return the parked offsets, ascending."""
        return parked_offsets(self._folder, self._files)

    def first_of(self, key: bytes | None) -> int | None:
        """Return the earliest parked offset of *key*. Keyless entries are independent."""
        offsets = None if key is None else self._offsets_by_key.get(key)
        return offsets[0] if offsets else None

    def keys(self) -> dict[bytes, int]:
        """Return every key that has parked entries, with the earliest offset of each."""
        return {key: offsets[0] for key, offsets in self._offsets_by_key.items()}

    def load(self, offset: int) -> ParkedEntry:
        """Return the parked entry at *offset*."""
        return ParkedStore.read_entry(self._folder, offset, self._files)

    def park(self, parked: ParkedEntry) -> None:
        """Store *parked*, durably on return. Raises as :meth:`park_all` does."""
        self.park_all([parked])

    def park_all(self, parked: Sequence[ParkedEntry]) -> None:
        """Store all of *parked*, durably on return. Each replaces an earlier copy of its entry.

        One sync of the folder makes the names of all of them durable.

        Raises:
            LogFull: there is no room. Nothing was parked.
            LogPoisoned: a sync failed (Invariant 13).
            EnvironmentFault: the disk cannot be written.

        """
        self._guard()
        folder = self._folder / FOLDER
        with translate_os_errors(folder):
            if not self._has_folder:
                make_directory(self._files, folder)
                self._has_folder = True
            names = (parked_path(self._folder, each.offset).name for each in parked)
            contents = dict(zip(names, (each.encode() for each in parked), strict=True))
            replace_all_durably(self._files, folder, contents)
        for each in parked:
            self._add(each)

    def remove(self, offset: int) -> None:
        """Remove a parked entry, durably on return. Raises as :meth:`park` does."""
        self.remove_all([offset])

    def remove_all(self, offsets: Sequence[int]) -> None:
        """Remove the parked entries at *offsets*, durably on return. Raises as :meth:`park`."""
        self._guard()
        folder = self._folder / FOLDER
        with translate_os_errors(folder):
            for offset in offsets:
                self._files.remove(parked_path(self._folder, offset))
            sync_directory(self._files, folder)
        for offset in offsets:
            self._discard_locked(offset)

    def _add(self, parked: ParkedEntry) -> None:
        # In one step: a thread that misses the offset meanwhile would take the entry for delivered.
        with self._lock:
            self._discard(parked.offset)
            key, size = parked.key, parked.entries.nbytes
            self.key_by_offset[parked.offset] = key
            self._sizes[parked.offset] = size
            if parked.reason.behind is not None:
                self._waits_for[parked.offset] = parked.reason.behind
            self._size += size
            if key is not None:
                insort(self._offsets_by_key.setdefault(key, []), parked.offset)

    def _discard_locked(self, offset: int) -> None:
        with self._lock:
            self._discard(offset)

    def _discard(self, offset: int) -> None:
        key = self.key_by_offset.pop(offset, None)
        self.damaged.pop(offset, None)
        self._waits_for.pop(offset, None)
        self._known_offsets = None
        self._size -= self._sizes.pop(offset, 0)
        if key is not None:
            offsets = self._offsets_by_key[key]
            del offsets[bisect_left(offsets, offset)]
            if not offsets:
                del self._offsets_by_key[key]


def skip_entries(
    store: ParkedStore, log: OffsetLog, offsets: Sequence[int], *, only: bool = False
) -> list[int]:
    """Skip the parked entries at *offsets* for good and return those that were still parked.

    Those behind them are delivered then, unless *only* is given. Durable on return.
    """
    known = store.known_offsets
    found = [offset for offset in offsets if offset in known]
    if found:
        # The record comes first. A kill before the copies are gone loses no follower, and
        # delivers no skipped entry (Invariants 5 and 15).
        log.begin_skip(found, [] if only else store.followers(frozenset(found)))
        finish_skip(store, log)
    return found


def finish_skip(store: ParkedStore, log: OffsetLog) -> None:
    """Remove the copies of skipped entries, including those left by a crash."""
    if log.state.skips:
        store.remove_all(log.state.skips)
        log.end_skip()
