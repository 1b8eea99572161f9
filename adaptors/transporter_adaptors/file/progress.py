r"""The offsets that a file's length stands for, stored beside it: ``<path>.progress``.

Three places in a file that never grows. Two hold whole states and are written
in turn, so that one of them is whole whatever a crash does to the other. The
third names the slice that is being written. It only decides whether bytes that are
cut off are copied first.

::

    0                    8192                 16384
    ┌────────────────────┬────────────────────┬─────────┐
    │ state of even turn │ state of odd turn  │ slice   │   each: CRC-32C, JSON, blanks, \n
    └────────────────────┴────────────────────┴─────────┘

Pure: nothing here touches a file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from crc32c import crc32c

from transporter.adaptor import StoredOffset
from transporter.errors import RouteFault

if TYPE_CHECKING:
    from transporter.adaptor import WriterContext

SUFFIX: Final = ".progress"
VERSION: Final = 1
END_BYTES: Final = 4096
"""Bytes of a file's end that distinguish it from another file with its inode number."""

_PAGE: Final = 4096
_STATE: Final = 2 * _PAGE
_SLICE: Final = 512
_SLICE_AT: Final = 2 * _STATE
SIZE: Final = _SLICE_AT + _SLICE
_ENCODER: Final = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class FileState:
    """The length up to which a file was written, and the offsets of that.

    Attributes:
        turn: The number of the state.
        file: The name of the file.
        inode: The file's inode number.
        length: The file's length in bytes.
        end: The CRC-32C of the last bytes before ``length``, at most :data:`END_BYTES`.
        period: The beginning of the period of the file's newest entry, in µs since 1970.
        boot: The run of the machine that wrote the state.
        synced: Whether lines behind it were only acked when a newer state was on disk.
        stored: The offsets, with that of the last writer at the end.
    """

    turn: int
    file: str
    inode: int
    length: int
    end: int
    period: int = 0
    boot: str = ""
    synced: bool = False
    stored: tuple[StoredOffset, ...] = ()

    def stored_for(self, context: WriterContext) -> StoredOffset | None:
        """Return the stored offset for the writer of *context*, if there is one."""
        wanted = (context.log_id, context.route, context.shard)
        return next((one for one in self.stored if _owner(one) == wanted), None)

    def with_stored(self, stored: StoredOffset) -> FileState:
        """Return this state with *stored* as the newest of its owner."""
        others = tuple(one for one in self.stored if _owner(one) != _owner(stored))
        return replace(self, stored=(*others, stored))


@dataclass(frozen=True, slots=True)
class PendingSlice:
    """The slice being written behind the state of ``turn``: so many bytes with this CRC-32C."""

    turn: int
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class PlacedBytes:
    """Bytes of the progress file, and their place in it."""

    text: bytes
    byte: int


def empty_content() -> PlacedBytes:
    """Return a progress file that holds nothing yet."""
    return PlacedBytes(b" " * (SIZE - 1) + b"\n", 0)


def place_state(state: FileState) -> PlacedBytes:
    """Return *state* for its place. The oldest offsets are dropped when there is no room."""
    parts = {
        "version": VERSION,
        **_fields_of(state),
        "stored": [_fields_of(one) for one in state.stored],
    }
    while len(text := _encode_line(parts)) > _STATE:
        parts["stored"] = parts["stored"][1:]
    width = -len(text) % _PAGE
    return PlacedBytes(text[:-1] + b" " * width + b"\n", state.turn % 2 * _STATE)


def place_slice(slice_: PendingSlice) -> PlacedBytes:
    """Return *slice_* for its place."""
    text = _encode_line(_fields_of(slice_))
    return PlacedBytes(text[:-1] + b" " * (_SLICE - len(text)) + b"\n", _SLICE_AT)


def newest_state(content: bytes) -> FileState | None:
    """Return the newest state in *content*, or ``None`` when it never held a durable one.

    That is so until the second turn: the first one, and the blanks that were
    there before, may be torn as long as nothing was acked.

    Raises:
        RouteFault: It no longer holds a whole state, or holds one of another version.
    """
    found = [_parse_fields(content[at : at + _STATE]) for at in (0, _STATE)]
    states = [_to_state(fields) for fields in found if fields is not None]
    if states:
        return max(states, key=lambda state: state.turn)
    if content[:_STATE].strip(b" \n\0"):
        raise RouteFault("is damaged")
    return None


def pending_slice(content: bytes) -> PendingSlice | None:
    """Return the slice that *content* names, if it is whole."""
    fields = _parse_fields(content[_SLICE_AT:])
    return PendingSlice(**fields) if fields is not None else None


def _owner(stored: StoredOffset) -> tuple[str, str, int]:
    return stored.log_id, stored.route, stored.shard


def _fields_of(value: FileState | PendingSlice | StoredOffset) -> dict[str, Any]:
    """Return the fields of *value*. ``asdict`` copies deeply, at ten times the cost."""
    return {name: getattr(value, name) for name in value.__slots__}


def _encode_line(parts: dict[str, Any]) -> bytes:
    text = _ENCODER.encode(parts).encode()
    return b"%08x %b\n" % (crc32c(text), text)


def _parse_fields(place: bytes) -> dict[str, Any] | None:
    line = place.partition(b"\n")[0].rstrip(b" ")
    text = line[9:]
    if line[:9] != b"%08x " % crc32c(text):
        return None
    fields: dict[str, Any] = json.loads(text)
    return fields


def _to_state(fields: dict[str, Any]) -> FileState:
    if fields.pop("version") != VERSION:
        raise RouteFault("was written by another version")
    stored = tuple(StoredOffset(**one) for one in fields.pop("stored"))
    return FileState(**fields, stored=stored)
