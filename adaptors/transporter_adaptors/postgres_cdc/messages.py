"""Messages of logical replication by the plugin pgoutput, and of the stream that carries them.

See "Logical Replication Message Formats" and "Streaming Replication Protocol" in PostgreSQL's
manual. Values come as text. Streaming of transactions in progress and two-phase commits are not
requested, so their messages are refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from transporter.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_EPOCH: Final = 946_684_800_000_000
"""2000-01-01 UTC, the server's epoch, in microseconds since 1970."""
_XLOG_DATA: Final = struct.Struct(">cQQq")
_KEEPALIVE: Final = struct.Struct(">cQqB")
_STATUS: Final = struct.Struct(">cQQQqB")
_BEGIN: Final = struct.Struct(">QqI")
_COMMIT: Final = struct.Struct(">BQQq")
_OID: Final = struct.Struct(">I")
_COUNT: Final = struct.Struct(">H")
_LENGTH: Final = struct.Struct(">i")
_TRUNCATE: Final = struct.Struct(">IB")
_LOGICAL: Final = struct.Struct(">BQ")
_COLUMN: Final = struct.Struct(">Ii")


class ProtocolError(SourceError):
    """The server sent something that is not a message of the protocol."""


class Unchanged:
    """The type of :data:`UNCHANGED`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()
"""A large value that an UPDATE has not changed, and that the server therefore leaves out."""

Value = bytes | Unchanged | None
"""A value's text, ``None`` for NULL."""


class XLogData(NamedTuple):
    """A message of the plugin, at the LSN ``start``."""

    start: int
    payload: bytes


class Keepalive(NamedTuple):
    """The server's end of WAL that was sent, and whether it waits for a report."""

    end: int
    wants_reply: bool


@dataclass(frozen=True, slots=True)
class Begin:
    """The begin of a transaction, with the LSN and the time (µs UTC) of its commit."""

    commit_lsn: int
    committed_at: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a transaction. A stream that starts at ``end_lsn`` has the next ones."""

    commit_lsn: int
    end_lsn: int
    committed_at: int


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column of a relation, as the stream has it."""

    name: str
    type_oid: int
    modifier: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """The definition of a table, sent before its first change and after it has changed."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


class Insert(NamedTuple):
    """A new row."""

    oid: int
    new: Sequence[Value]


class Update(NamedTuple):
    """A changed row. ``old`` has all values with a full identity, or the key's if it changed."""

    oid: int
    new: Sequence[Value]
    old: Sequence[Value] | None
    is_whole: bool


class Delete(NamedTuple):
    """A row that is gone: all of ``old``, or the values of the identity alone."""

    oid: int
    old: Sequence[Value]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    """A TRUNCATE of these tables."""

    oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """The result of ``pg_logical_emit_message``."""

    is_transactional: bool
    lsn: int
    prefix: str
    content: bytes


Change = Insert | Update | Delete | Truncate | LogicalMessage
PluginMessage = Begin | Commit | Relation | Change


def decode_copy(data: bytes) -> XLogData | Keepalive:
    """Decode one message of the stream.

    Raises:
        ProtocolError: it is not one.

    """
    try:
        if data[:1] == b"w":
            _, start, _, _ = _XLOG_DATA.unpack_from(data)
            return XLogData(start, data[_XLOG_DATA.size :])
        if data[:1] == b"k":
            _, end, _, reply = _KEEPALIVE.unpack(data)
            return Keepalive(end, bool(reply))
    except struct.error as error:
        raise ProtocolError(f"a message of {len(data)} bytes is too short or too long") from error
    raise ProtocolError(f"the message kind {data[:1]!r} is unknown in a stream")


def encode_status(lsn: int, now: int, reply: bool) -> bytes:  # noqa: FBT001 - as in the protocol
    """Return a report that all up to *lsn* is written, flushed and applied, at *now* (µs UTC)."""
    return _STATUS.pack(b"r", lsn, lsn, lsn, now - _EPOCH, reply)


def decode_message(data: bytes) -> PluginMessage | None:
    """Decode a message of the plugin, or return ``None`` for one that carries nothing for us.

    Raises:
        ProtocolError: it is not one, or is one that was not requested.

    """
    kind = data[:1]
    if (decode := _DECODERS.get(kind)) is None:
        raise ProtocolError(f"the message kind {kind!r} was not requested from pgoutput")
    try:
        message, end = decode(data)
    except (struct.error, IndexError, ValueError) as error:
        raise ProtocolError(f"a message of kind {kind!r} cannot be decoded: {error}") from error
    if end != len(data):
        raise ProtocolError(f"a message of kind {kind!r} has {len(data) - end} bytes too many")
    return message


def _begin(data: bytes) -> tuple[Begin, int]:
    lsn, time, xid = _BEGIN.unpack_from(data, 1)
    return Begin(lsn, time + _EPOCH, xid), 1 + _BEGIN.size


def _commit(data: bytes) -> tuple[Commit, int]:
    _, lsn, end, time = _COMMIT.unpack_from(data, 1)
    return Commit(lsn, end, time + _EPOCH), 1 + _COMMIT.size


def _relation(data: bytes) -> tuple[Relation, int]:
    (oid,) = _OID.unpack_from(data, 1)
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    identity = chr(data[at])
    (count,) = _COUNT.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = data[at]
        column, at = _text(data, at + 1)
        type_oid, modifier = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append(RelationColumn(column, type_oid, modifier, bool(flags & 1)))
    # An empty schema stands for pg_catalog.
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns)), at


def _insert(data: bytes) -> tuple[Insert, int]:
    (oid,) = _OID.unpack_from(data, 1)
    _expect(data, 5, b"N")
    new, at = _row(data, 6)
    return Insert(oid, new), at


def _update(data: bytes) -> tuple[Update, int]:
    (oid,) = _OID.unpack_from(data, 1)
    old, at, kind = None, 5, data[5:6]
    if kind in (b"K", b"O"):
        old, at = _row(data, 6)
    _expect(data, at, b"N")
    new, at = _row(data, at + 1)
    return Update(oid, new, old, kind == b"O"), at


def _delete(data: bytes) -> tuple[Delete, int]:
    (oid,) = _OID.unpack_from(data, 1)
    kind = data[5:6]
    if kind not in (b"K", b"O"):
        _refuse(data, 5)
    old, at = _row(data, 6)
    return Delete(oid, old, kind == b"O"), at


def _truncate(data: bytes) -> tuple[Truncate, int]:
    count, flags = _TRUNCATE.unpack_from(data, 1)
    at = 1 + _TRUNCATE.size
    oids = struct.unpack_from(f">{count}I", data, at) if count <= len(data) else _refuse(data, 1)
    return Truncate(oids, bool(flags & 1), bool(flags & 2)), at + 4 * count


def _logical(data: bytes) -> tuple[LogicalMessage, int]:
    flags, lsn = _LOGICAL.unpack_from(data, 1)
    prefix, at = _text(data, 1 + _LOGICAL.size)
    (size,) = _OID.unpack_from(data, at)
    end = at + 4 + size
    if end > len(data):
        _refuse(data, at)
    return LogicalMessage(bool(flags & 1), lsn, prefix, data[at + 4 : end]), end


def _nothing(data: bytes) -> tuple[None, int]:
    """Skip a type's name or an origin: neither is needed."""
    return None, len(data)


def _row(data: bytes, at: int) -> tuple[list[Value], int]:
    (count,) = _COUNT.unpack_from(data, at)
    at += 2
    values: list[Value] = []
    length_at, unpack, size = at, _LENGTH.unpack_from, len(data)
    for _ in range(count):
        kind = data[length_at]
        if kind == _TEXT:
            (length,) = unpack(data, length_at + 1)
            begin = length_at + 5
            length_at = begin + length
            if length < 0 or length_at > size:
                _refuse(data, begin)
            values.append(data[begin:length_at])
        elif kind == _NULL:
            values.append(None)
            length_at += 1
        elif kind == _UNCHANGED:
            values.append(UNCHANGED)
            length_at += 1
        else:
            _refuse(data, length_at)
    return values, length_at


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    # The database may have any bytes in its names.
    return data[at:end].decode(errors="surrogateescape"), end + 1


def _expect(data: bytes, at: int, kind: bytes) -> None:
    if data[at : at + 1] != kind:
        _refuse(data, at)


def _refuse(data: bytes, at: int) -> NoReturn:
    raise ValueError(f"unexpected {data[at : at + 1]!r} at byte {at} of {len(data)}")


_TEXT, _NULL, _UNCHANGED = b"tnu"
_DECODERS: Final[dict[bytes, Callable[[bytes], tuple[PluginMessage | None, int]]]] = {
    b"B": _begin,
    b"C": _commit,
    b"R": _relation,
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
    b"M": _logical,
    b"Y": _nothing,
    b"O": _nothing,
}
