"""Messages of PostgreSQL's logical replication, decoded from the bytes of the plugin pgoutput.

The formats are those of PostgreSQL's manual, chapters "Logical Replication Message Formats" and
"Streaming Replication Protocol". Versions 1 to 4 of the protocol are supported without the
options ``streaming``, ``two_phase`` and ``binary``. All four have the same messages then.

::

    XLogData    w start:8 end:8 clock:8 message         Begin     B lsn:8 time:8 xid:4
    Keepalive   k end:8 clock:8 reply:1                 Commit    C flags:1 lsn:8 end:8 time:8
    status      r written:8 flushed:8 applied:8         Origin    O lsn:8 name
                  clock:8 reply:1                       TypeInfo  Y oid:4 schema name
    Relation    R oid:4 schema name identity:1          Insert    I oid:4 N row
                  count:2 (key:1 name type:4 mod:4)*    Update    U oid:4 [K row | O row] N row
    row         count:2 (n | u | t size:4 text)*        Delete    D oid:4 (K row | O row)
    Logical-    M flags:1 lsn:8 prefix size:4           Truncate  T count:4 flags:1 (oid:4)*
    Message       content

Numbers are big-endian. Names end with a zero byte. Times are microseconds since 2000 in the
messages, and since 1970 in the decoded values. Any bytes that deviate from the formats are
refused with a ``ProtocolError``.
"""

from __future__ import annotations

import struct
from enum import Enum
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from transporter.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter_adaptors.postgres_cdc.lsn import Lsn

EPOCH: Final = 946_684_800_000_000
"""PostgreSQL's epoch, 2000-01-01 UTC, in microseconds since 1970."""
_KEEPALIVE: Final = Struct(">xQqB")
_XLOG_HEAD: Final = Struct(">xQQq")
_STATUS: Final = Struct(">cQQQqB")
_BEGIN: Final = Struct(">xQqI")
_COMMIT: Final = Struct(">xBQQq")
_ROW_HEAD: Final = Struct(">xIB")
_TRUNCATE_HEAD: Final = Struct(">xIB")
_LOGICAL_HEAD: Final = Struct(">BQ")
_COLUMN_TYPE: Final = Struct(">Ii")
_UINT8: Final = Struct(">B")
_UINT16: Final = Struct(">H")
_UINT32: Final = Struct(">I")
_UINT64: Final = Struct(">Q")
_read_count: Final = _UINT16.unpack_from
_read_size: Final = _UINT32.unpack_from
_NEW, _KEY, _OLD = b"NKO"
_NULL, _UNCHANGED, _TEXT = b"nut"
_IDENTITIES: Final = frozenset(b"dnfi")
_CATALOG: Final = "pg_catalog"
"""The schema that the server sends as an empty name."""
_AGAIN: Final = (
    "restart the reader, which reads it again; if it fails again, report this with the server's "
    "version"
)
_UNSUPPORTED: Final = {
    **dict.fromkeys(b"SEcA", "streaming"),
    **dict.fromkeys(b"bPKrp", "two_phase"),
}
"""Options that add messages of these kinds."""


class ProtocolError(SourceError):
    """Bytes from the server that are not a supported message of the protocol."""


class Unchanged(Enum):
    """The type of ``UNCHANGED``."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return self.name


UNCHANGED: Final = Unchanged.UNCHANGED
"""A large (TOAST) value that an update did not change, and that the server does not send."""

Value: TypeAlias = bytes | Literal[Unchanged.UNCHANGED] | None
"""The text of a column's value. ``None`` is NULL."""
Row: TypeAlias = tuple[Value, ...]
"""The values of one row, in the order of the columns of its ``Relation``."""

# Named tuples are built in two thirds of the time of frozen dataclasses. As tuples, two of
# different types may be equal: compare their types before their values.


class XLogData(NamedTuple):
    """A message of the plugin, with its place in the write-ahead log.

    Attributes:
        start: The position of the change. Zero for what is sent ahead of another message for
            the same change, such as a Relation.
        end: The end of the write-ahead log on the server.
        sent_at_us: The server's clock, in microseconds since 1970.
        payload: The bytes for :func:`decode_message`.
    """

    start: Lsn
    end: Lsn
    sent_at_us: int
    payload: bytes


class Keepalive(NamedTuple):
    """The end of the server's log and the server's clock. It may request a status update."""

    end: Lsn
    sent_at_us: int
    reply_requested: bool


class Begin(NamedTuple):
    """The start of a transaction, with the position of its commit record."""

    commit_lsn: Lsn
    committed_at_us: int
    xid: int


class Commit(NamedTuple):
    """The end of a transaction. The next one is read from *end_lsn*."""

    commit_lsn: Lsn
    end_lsn: Lsn
    committed_at_us: int


class Origin(NamedTuple):
    """The replication origin of the transaction, with the position of its commit there."""

    commit_lsn: Lsn
    name: str


class Column(NamedTuple):
    """A column of a relation. *modifier* is its ``atttypmod``, -1 if there is none."""

    name: str
    type_oid: int
    modifier: int
    is_key: bool
    """Whether the replica identity includes it."""


class Relation(NamedTuple):
    """The definition of a table, sent before its first change and after it was altered.

    *identity* is its ``relreplident``: ``d`` (default), ``n`` (nothing), ``f`` (full) or
    ``i`` (index).
    """

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[Column, ...]


class TypeInfo(NamedTuple):
    """The name of a type that is not built in, sent before the relation that uses it."""

    oid: int
    schema: str
    name: str


class Insert(NamedTuple):
    """An inserted row of the relation *oid*."""

    oid: int
    new: Row


class Update(NamedTuple):
    """An updated row of the relation *oid*.

    *old* is the whole old row where the replica identity is FULL. Otherwise it has the old key,
    with ``None`` in all other columns, and is sent only if the key changed or the old key is
    stored as a large (TOAST) value.
    """

    oid: int
    old: Row | None
    is_whole_old: bool
    new: Row


class Delete(NamedTuple):
    """A deleted row of the relation *oid*: the whole row, or its key and ``None`` elsewhere."""

    oid: int
    old: Row
    is_whole_old: bool


class Truncate(NamedTuple):
    """The relations that one statement truncated, including those reached by CASCADE."""

    oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


class LogicalMessage(NamedTuple):
    """A message of ``pg_logical_emit_message``, with the position of its record."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes


Message: TypeAlias = (
    Begin
    | Commit
    | Relation
    | TypeInfo
    | Origin
    | Insert
    | Update
    | Delete
    | Truncate
    | LogicalMessage
)


def decode_copy(data: bytes | memoryview) -> XLogData | Keepalive:
    """Decode *data*, one CopyData message of a replication session.

    Raises:
        ProtocolError: It is neither XLogData nor a keepalive, or has the wrong length.
    """
    kind = data[:1]
    if kind == b"w" and len(data) >= _XLOG_HEAD.size:
        start, end, clock = _XLOG_HEAD.unpack_from(data)
        return XLogData(start, end, clock + EPOCH, bytes(data[_XLOG_HEAD.size :]))
    if kind == b"k" and len(data) == _KEEPALIVE.size:
        end, clock, reply = _KEEPALIVE.unpack(data)
        _check_flags(data, reply, 1)
        return Keepalive(end, clock + EPOCH, bool(reply))
    if kind in {b"w", b"k"}:
        raise ProtocolError(f"{_name(data)} has {len(data)} bytes, which is not its size; {_AGAIN}")
    raise ProtocolError(
        f"{_name(data)} at byte 0 is unknown, where XLogData or a keepalive is expected; {_AGAIN}"
    )


def encode_status(lsn: Lsn, now_us: int, *, reply_requested: bool = False) -> bytes:
    """Return a standby status update: everything before *lsn* is written, flushed and applied.

    Args:
        lsn: The position. The server may remove what only this slot needs before it.
        now_us: The time, in microseconds since 1970.
        reply_requested: Whether the server has to respond with a keepalive at once.
    """
    return _STATUS.pack(b"r", lsn, lsn, lsn, now_us - EPOCH, reply_requested)


def decode_message(payload: bytes) -> Message:
    """Decode *payload*, one message of the plugin pgoutput.

    Names are decoded as UTF-8, with ``surrogateescape`` for databases of another encoding.

    Raises:
        ProtocolError: It is not a supported message, is cut off, or has bytes left over.
    """
    decode = _DECODERS.get(payload[0]) if payload else None
    if decode is None:
        raise _unknown_kind(payload)
    try:
        return decode(payload)
    except (IndexError, struct.error):
        raise _cut_off(payload) from None


def _decode_begin(payload: bytes) -> Begin:
    _check_end(payload, _BEGIN.size)
    lsn, time, xid = _BEGIN.unpack(payload)
    return Begin(lsn, time + EPOCH, xid)


def _decode_commit(payload: bytes) -> Commit:
    _check_end(payload, _COMMIT.size)
    flags, lsn, end, time = _COMMIT.unpack(payload)
    _check_flags(payload, flags, 0)
    return Commit(lsn, end, time + EPOCH)


def _decode_insert(payload: bytes) -> Insert:
    oid, marker = _ROW_HEAD.unpack_from(payload)
    if marker != _NEW:
        raise _unexpected(payload, 5, "N")
    new, end = read_row(payload, 6)
    if end != len(payload):
        raise _wrong_end(payload, end)
    return Insert(oid, new)


def _decode_update(payload: bytes) -> Update:
    oid, marker = _ROW_HEAD.unpack_from(payload)
    old, at = None, 5
    if marker in {_KEY, _OLD}:
        old, at = read_row(payload, 6)
    if payload[at] != _NEW:
        raise _unexpected(payload, at, "N" if old is not None else "K, O or N")
    new, end = read_row(payload, at + 1)
    if end != len(payload):
        raise _wrong_end(payload, end)
    return Update(oid, old, marker == _OLD, new)


def _decode_delete(payload: bytes) -> Delete:
    oid, marker = _ROW_HEAD.unpack_from(payload)
    if marker not in {_KEY, _OLD}:
        raise _unexpected(payload, 5, "K or O")
    old, end = read_row(payload, 6)
    if end != len(payload):
        raise _wrong_end(payload, end)
    return Delete(oid, old, marker == _OLD)


def read_row(payload: bytes, at: int) -> tuple[Row, int]:
    """Return the row at byte *at*, and the byte after it, which may lie beyond a payload's end."""
    (count,) = _read_count(payload, at)
    at += 2
    row: list[Value] = []
    for _ in range(count):
        kind = payload[at]
        if kind == _TEXT:
            start = at + 5
            at = start + _read_size(payload, at + 1)[0]
            # A slice beyond the end is short. The caller compares the end.
            row.append(payload[start:at])
        elif kind == _NULL:
            row.append(None)
            at += 1
        elif kind == _UNCHANGED:
            row.append(UNCHANGED)
            at += 1
        else:
            raise _unknown_value(payload, at, len(row))
    return tuple(row), at


def _decode_truncate(payload: bytes) -> Truncate:
    count, flags = _TRUNCATE_HEAD.unpack_from(payload)
    head = _TRUNCATE_HEAD.size
    _check_end(payload, head + count * _UINT32.size)
    _check_flags(payload, flags, 3)
    oids = tuple(oid for (oid,) in _UINT32.iter_unpack(payload[head:]))
    return Truncate(oids, bool(flags & 1), bool(flags & 2))


class _Fields:
    """The fields of a message, read one after the other, behind the byte of its kind."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self.at = 1

    def take(self, layout: Struct) -> tuple[Any, ...]:
        values = layout.unpack_from(self._payload, self.at)
        self.at += layout.size
        return values

    def take_text(self) -> str:
        if (end := self._payload.find(b"\0", self.at)) < 0:
            raise _cut_off(self._payload)
        text = self._payload[self.at : end].decode(errors="surrogateescape")
        self.at = end + 1
        return text


def _decode_relation(payload: bytes) -> Relation:
    fields = _Fields(payload)
    (oid,) = fields.take(_UINT32)
    schema, name = fields.take_text() or _CATALOG, fields.take_text()
    (identity,) = fields.take(_UINT8)
    if identity not in _IDENTITIES:
        raise _unexpected(payload, fields.at - 1, "d, n, f or i")
    (count,) = fields.take(_UINT16)
    columns = tuple(_read_column(payload, fields) for _ in range(count))
    _check_end(payload, fields.at)
    return Relation(oid, schema, name, chr(identity), columns)


def _read_column(payload: bytes, fields: _Fields) -> Column:
    (flags,) = fields.take(_UINT8)
    _check_flags(payload, flags, 1)
    name = fields.take_text()
    type_oid, modifier = fields.take(_COLUMN_TYPE)
    return Column(name, type_oid, modifier, bool(flags))


def _decode_type(payload: bytes) -> TypeInfo:
    fields = _Fields(payload)
    (oid,) = fields.take(_UINT32)
    info = TypeInfo(oid, fields.take_text() or _CATALOG, fields.take_text())
    _check_end(payload, fields.at)
    return info


def _decode_origin(payload: bytes) -> Origin:
    fields = _Fields(payload)
    (lsn,) = fields.take(_UINT64)
    origin = Origin(lsn, fields.take_text())
    _check_end(payload, fields.at)
    return origin


def _decode_logical(payload: bytes) -> LogicalMessage:
    fields = _Fields(payload)
    flags, lsn = fields.take(_LOGICAL_HEAD)
    _check_flags(payload, flags, 1)
    prefix = fields.take_text()
    (size,) = fields.take(_UINT32)
    _check_end(payload, fields.at + size)
    return LogicalMessage(bool(flags), lsn, prefix, payload[fields.at :])


_DECODERS: Final[dict[int, Callable[[bytes], Message]]] = {
    ord("B"): _decode_begin,
    ord("C"): _decode_commit,
    ord("D"): _decode_delete,
    ord("I"): _decode_insert,
    ord("M"): _decode_logical,
    ord("O"): _decode_origin,
    ord("R"): _decode_relation,
    ord("T"): _decode_truncate,
    ord("U"): _decode_update,
    ord("Y"): _decode_type,
}


def _check_flags(data: bytes | memoryview, flags: int, known: int) -> None:
    if flags & ~known:
        raise ProtocolError(f"{_name(data)} has the unknown flags {flags & ~known:#x}; {_AGAIN}")


def _check_end(payload: bytes, end: int) -> None:
    if end != len(payload):
        raise _wrong_end(payload, end)


def _wrong_end(payload: bytes, end: int) -> ProtocolError:
    if end > len(payload):
        return _cut_off(payload)
    left = len(payload) - end
    return ProtocolError(f"{_name(payload)} has {left} bytes left over at byte {end}; {_AGAIN}")


def _cut_off(payload: bytes) -> ProtocolError:
    return ProtocolError(
        f"{_name(payload)} is cut off: it ends at byte {len(payload)}, within a field; {_AGAIN}"
    )


def _unexpected(payload: bytes, at: int, expected: str) -> ProtocolError:
    return ProtocolError(
        f"{_name(payload)} has {_show(payload, at)} at byte {at}, where {expected} is expected; "
        f"{_AGAIN}"
    )


def _unknown_value(payload: bytes, at: int, column: int) -> ProtocolError:
    place = f"{_name(payload)} has, in column {column + 1} at byte {at}, a value"
    if payload[at] == ord("b"):
        return ProtocolError(f"{place} in binary; start replication without the option binary")
    return ProtocolError(f"{place} of the unknown kind {_show(payload, at)}; {_AGAIN}")


def _unknown_kind(payload: bytes) -> ProtocolError:
    if payload and (option := _UNSUPPORTED.get(payload[0])):
        return ProtocolError(
            f"{_name(payload)} belongs to the option {option}, which is not supported; start "
            "replication without it"
        )
    return ProtocolError(
        f"{_name(payload)} at byte 0 is unknown; check that the slot's plugin is pgoutput and its "
        "proto_version at most 4"
    )


def _name(data: bytes | memoryview) -> str:
    return f"replication message {_show(data, 0)}" if data else "an empty replication message"


def _show(data: bytes | memoryview, at: int) -> str:
    return repr(bytes(data[at : at + 1]))[1:]
