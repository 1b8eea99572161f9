"""The two small files beside the segments: ``meta`` and ``durable``.

``meta`` is replaced atomically and synced. ``durable`` is overwritten in place after
every sync and never synced itself. It publishes the last readable offset to other
processes while an engine runs, and proves nothing after a crash.
"""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID

from crc32c import crc32c

from transporter.errors import Corrupt, UnknownFormat
from transporter.log.filesystem import open_file, replace_durably
from transporter.log.format import FORMAT
from transporter.log.runs import Runs

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.log.filesystem import File, FileSystem

META: Final = "meta"
DURABLE: Final = "durable"
_MAX_META: Final = 1 << 18
_DURABLE: Final = struct.Struct("<4sIQqI")


@dataclass(frozen=True, slots=True)
class CleanMark:
    """A clean stop: the last segment's file name and the byte where its frames end."""

    file: str
    end: int


@dataclass(frozen=True, slots=True)
class Meta:
    """The state of a log between opens.

    Attributes:
        proved: the highest offset known to be durable when this was written. It stays when
            the clean mark is cleared (Invariant 3).
        runs: the opens that prove that a sink's stored offset belongs to this log's history.

    """

    log_id: str
    epoch: int
    proved: int
    clean: CleanMark | None = None
    runs: Runs = field(default_factory=Runs)

    def encode(self) -> bytes:
        """Return one line of JSON and one with its checksum."""
        fields = {**asdict(self), "runs": self.runs.to_json()}
        body = json.dumps({"format": FORMAT, **fields}).encode()
        return b"%s\n%08x\n" % (body, crc32c(body))

    @classmethod
    def decode(cls, data: bytes, file: str) -> Self:
        """Decode the return value of :meth:`encode`."""
        body, _, checksum = data.partition(b"\n")
        if checksum.strip() != b"%08x" % crc32c(body):
            raise Corrupt("the log's meta file does not match its checksum", file, 0)
        try:
            return cls._from_fields(json.loads(body), file)
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            problem = f"the log's meta file cannot be read: {type(error).__name__}"
            raise Corrupt(problem, file, 0) from error

    @classmethod
    def _from_fields(cls, fields: dict[str, Any], file: str) -> Self:
        if (version := fields.pop("format")) != FORMAT:
            raise UnknownFormat(
                f"{file}: format version {version}, but this transporter reads version {FORMAT}; "
                "use the version that wrote this file, or one that can read it"
            )
        clean = fields.pop("clean")
        # A meta file of an older version has no runs.
        runs = Runs.from_json(fields.pop("runs", ()))
        found = cls(**fields, clean=CleanMark(**clean) if clean else None, runs=runs)
        if {type(found.epoch), type(found.proved)} != {int}:
            raise TypeError
        UUID(found.log_id)
        return found


def read_meta(files: FileSystem, directory: Path) -> Meta | None:
    """Return the log's meta, or ``None`` if there is no log yet."""
    path = directory / META
    try:
        with open_file(files, path) as file:
            return Meta.decode(file.pread(_MAX_META, 0), str(path))
    except FileNotFoundError:
        return None


def write_meta(files: FileSystem, directory: Path, meta: Meta) -> None:
    """Replace the log's meta durably."""
    replace_durably(files, directory / META, [meta.encode()])


class DurableMark:
    """The published durable offset: written by the engine, read by other processes."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        """Open the mark for writing, creating it if necessary."""
        self._file: File = files.open(directory / DURABLE, write=True, create=True)

    def publish(self, epoch: int, offset: int) -> None:
        """Let other processes read up to *offset*, which must be durable.

        A failure only leaves them behind, so it does not fail the append.
        """
        body = _DURABLE.pack(b"TDUR", FORMAT, epoch, offset, 0)[:-4]
        with suppress(OSError):
            self._file.pwrite(body + struct.pack("<I", crc32c(body)), 0)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def published_offset(files: FileSystem, directory: Path, epoch: int | None = None) -> int | None:
    """Return the offset last published, or ``None`` if it cannot be read.

    With *epoch*, return only the offset that the engine of that epoch has published.
    """
    try:
        with open_file(files, directory / DURABLE) as file:
            data = file.pread(_DURABLE.size, 0)
    except FileNotFoundError:
        return None
    if len(data) < _DURABLE.size or crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
        return None
    _, _, of_epoch, offset, _ = _DURABLE.unpack(data)
    return int(offset) if epoch in (None, of_epoch) else None
