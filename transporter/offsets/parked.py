"""Parked entries: copies of what a route could not deliver, each with its error.

One file an entry, an ordinary frame of the log whose extension says why. A
copy is durable before anything later of its shard is delivered, and pins
nothing: the log may compact what was parked.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Self

from crc32c import crc32c

from transporter.errors import Corrupt
from transporter.log import format as layout
from transporter.log.filesystem import (
    RealFileSystem,
    faults_of,
    make_directory,
    opened,
    replace_durably,
    sync_directory,
)
from transporter.message import size_of

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.filesystem import FileSystem

FOLDER: Final = "parked"
_SUFFIX: Final = ".entry"
_MAX_BYTES: Final = layout.FRAME_HEADER_BYTES + layout.MAX_EXTENSION + layout.MAX_PAYLOAD
_MAX_ERROR: Final = 4096


@dataclass(frozen=True, slots=True)
class Reason:
    """Why an entry is parked.

    ``behind`` names the earlier entry of its key that it waits for; ``None``
    when it failed itself, ``attempts`` times. ``parked_at`` is in µs UTC.
    """

    error: str
    attempts: int
    parked_at: int
    behind: int | None = None


@dataclass(frozen=True, slots=True)
class Parked:
    """A parked entry: its batch of one row, and why it is here."""

    offset: int
    entries: pa.RecordBatch
    reason: Reason

    @property
    def key(self) -> bytes | None:
        """The entry's key."""
        return self.entries.column("key")[0].as_py()  # type: ignore[no-any-return]

    @classmethod
    def read(cls, data: bytes, file: str) -> Self:
        """Read a parked file.

        Raises:
            Corrupt: it is not what was written.

        """
        frame = layout.FrameHeader.decode(data, 0, 0)
        if frame is None or len(data) < frame.payload_byte + frame.payload_length:
            raise Corrupt("not a parked entry", file, 0)
        extension = data[frame.extension_byte : frame.payload_byte]
        payload = data[frame.payload_byte : frame.payload_byte + frame.payload_length]
        if (crc32c(extension), crc32c(payload)) != (frame.extension_crc, frame.payload_crc):
            raise Corrupt("a parked entry does not match its checksum", file, 0, frame.first)
        reason = Reason(**json.loads(extension))
        return cls(frame.first, layout.decode_payload(payload), reason)

    def encode(self) -> bytes:
        """Return the bytes of the parked file."""
        short = asdict(self.reason) | {"error": self.reason.error[:_MAX_ERROR]}
        extension = json.dumps(short).encode()
        payload = layout.encode_payload(self.entries, "lz4")
        header = layout.FrameHeader(
            extension_length=len(extension),
            payload_length=len(payload),
            entries_bytes=size_of(self.entries),
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


def parked_path(folder: Path, offset: int) -> Path:
    """Return the file of a parked entry of the route whose folder is *folder*."""
    return folder / FOLDER / f"{offset:020d}{_SUFFIX}"


def parked_offsets(folder: Path, files: FileSystem) -> list[int]:
    """Return the parked offsets of the route whose folder is *folder*, ascending."""
    with faults_of(folder):
        names = files.names(folder / FOLDER)
    return [int(name.removesuffix(_SUFFIX)) for name in names if name.endswith(_SUFFIX)]


class ParkedStore:
    """The parked entries of one route. Not thread-safe; readers in other processes may look."""

    @classmethod
    def read(cls, folder: Path, offset: int, files: FileSystem | None = None) -> Parked:
        """Return one parked entry of the route whose folder is *folder*."""
        path = parked_path(folder, offset)
        with faults_of(path), opened(files or RealFileSystem(), path) as file:
            return Parked.read(file.pread(min(file.size(), _MAX_BYTES), 0), str(path))

    def __init__(self, folder: Path, files: FileSystem | None = None) -> None:
        """Look into *folder*, the route's own."""
        self._files = files or RealFileSystem()
        self._folder = folder
        self._has_folder = False
        self._keys: dict[int, bytes | None] = {}
        self._sizes: dict[int, int] = {}
        self.known: frozenset[int] = frozenset()
        """The parked offsets; may be read by any thread."""
        for offset in self.offsets():
            self._note(self.load(offset))

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, offset: int) -> bool:
        return offset in self._keys

    def same_key(self, one: int, other: int) -> bool:
        """Tell whether two parked entries have the same key."""
        key = self._keys[one]
        return key is not None and key == self._keys[other]

    @property
    def size(self) -> int:
        """Bytes of the parked files."""
        return sum(self._sizes.values())

    def offsets(self) -> list[int]:
        """Return the parked offsets, ascending."""
        return parked_offsets(self._folder, self._files)

    def first_of(self, key: bytes | None) -> int | None:
        """Return the earliest parked offset of *key*; keyless entries are free of each other."""
        if key is None:
            return None
        return min((offset for offset, parked in self._keys.items() if parked == key), default=None)

    def keys(self) -> dict[bytes, int]:
        """Return every key that has parked entries, with the earliest offset of each."""
        found: dict[bytes, int] = {}
        for offset, key in sorted(self._keys.items()):
            if key is not None:
                found.setdefault(key, offset)
        return found

    def load(self, offset: int) -> Parked:
        """Return the parked entry at *offset*."""
        return ParkedStore.read(self._folder, offset, self._files)

    def park(self, parked: Parked) -> None:
        """Keep *parked*, durably on return; it replaces an earlier copy of the same entry.

        Raises:
            LogFull: there is no room; nothing was parked.
            LogPoisoned: a sync failed (Invariant 13).
            EnvironmentFault: the disk cannot be written.

        """
        path = parked_path(self._folder, parked.offset)
        with faults_of(path):
            if not self._has_folder:
                make_directory(self._files, path.parent)
                self._has_folder = True
            replace_durably(self._files, path, [parked.encode()])
        self._note(parked)

    def remove(self, offset: int) -> None:
        """Forget a parked entry, durably on return; raises as :meth:`park` does."""
        path = parked_path(self._folder, offset)
        with faults_of(path):
            self._files.remove(path)
            sync_directory(self._files, path.parent)
        self._keys.pop(offset, None)
        self._sizes.pop(offset, None)
        self.known = frozenset(self._keys)

    def _note(self, parked: Parked) -> None:
        self._keys[parked.offset] = parked.key
        self._sizes[parked.offset] = parked.entries.nbytes
        self.known = frozenset(self._keys)
