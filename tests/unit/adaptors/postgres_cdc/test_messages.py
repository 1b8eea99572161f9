"""Messages of logical replication, against an encoder written from PostgreSQL's manual."""

from __future__ import annotations

import copy
import pickle
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from transporter_adaptors.postgres_cdc.messages import (
    UNCHANGED,
    Begin,
    Column,
    Commit,
    Delete,
    Insert,
    Keepalive,
    LogicalMessage,
    Origin,
    ProtocolError,
    Relation,
    Truncate,
    TypeInfo,
    Update,
    XLogData,
    decode_copy,
    decode_message,
    encode_status,
)

from transporter.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

AT_2000 = 946_684_800_000_000


def number(size: int, value: int) -> bytes:
    """Return *value* as Int8, Int16, Int32 or Int64 of the manual: *size* bytes, high first."""
    return (value % (1 << 8 * size)).to_bytes(size, "big")


def string(text: str) -> bytes:
    """Return *text* as String of the manual."""
    return text.encode(errors="surrogateescape") + b"\0"


def tuple_data(row: tuple[Any, ...]) -> bytes:
    """Return *row* as TupleData of the manual."""
    cells = []
    for value in row:
        if value is None:
            cells.append(b"n")
        elif value is UNCHANGED:
            cells.append(b"u")
        else:
            cells.append(b"t" + number(4, len(value)) + value)
    return number(2, len(row)) + b"".join(cells)


def old_tuple(row: tuple[Any, ...] | None, *, is_whole: bool) -> bytes:
    """Return the old row of an update or delete, with its marker."""
    return b"" if row is None else (b"O" if is_whole else b"K") + tuple_data(row)


def relation_column(column: Column) -> bytes:
    """Return one column of a Relation message."""
    head = number(1, column.is_key) + string(column.name)
    return head + number(4, column.type_oid) + number(4, column.modifier)


ENCODERS: dict[type, Callable[[Any], bytes]] = {
    Begin: lambda m: (
        b"B" + number(8, m.commit_lsn) + number(8, m.committed_at_us - AT_2000) + number(4, m.xid)
    ),
    Commit: lambda m: (
        b"C\0"
        + number(8, m.commit_lsn)
        + number(8, m.end_lsn)
        + number(8, m.committed_at_us - AT_2000)
    ),
    Origin: lambda m: b"O" + number(8, m.commit_lsn) + string(m.name),
    Relation: lambda m: (
        b"R"
        + number(4, m.oid)
        + string("" if m.schema == "pg_catalog" else m.schema)
        + string(m.name)
        + m.identity.encode()
        + number(2, len(m.columns))
        + b"".join(map(relation_column, m.columns))
    ),
    TypeInfo: lambda m: (
        b"Y"
        + number(4, m.oid)
        + string("" if m.schema == "pg_catalog" else m.schema)
        + string(m.name)
    ),
    Insert: lambda m: b"I" + number(4, m.oid) + b"N" + tuple_data(m.new),
    Update: lambda m: (
        b"U"
        + number(4, m.oid)
        + old_tuple(m.old, is_whole=m.is_whole_old)
        + b"N"
        + tuple_data(m.new)
    ),
    Delete: lambda m: b"D" + number(4, m.oid) + old_tuple(m.old, is_whole=m.is_whole_old),
    Truncate: lambda m: (
        b"T"
        + number(4, len(m.oids))
        + number(1, m.cascade + 2 * m.restart_identity)
        + b"".join(number(4, oid) for oid in m.oids)
    ),
    LogicalMessage: lambda m: (
        b"M"
        + number(1, m.transactional)
        + number(8, m.lsn)
        + string(m.prefix)
        + number(4, len(m.content))
        + m.content
    ),
}


def encode(message: Any) -> bytes:
    """Return the bytes that the server sends for *message*."""
    return ENCODERS[type(message)](message)


EXAMPLES = [
    (
        Begin(0x16B3748, AT_2000 + 5, 731),
        "42 00000000016b3748 0000000000000005 000002db",
    ),
    (
        Commit(0x16B3748, 0x16B3778, AT_2000 - 1),
        "43 00 00000000016b3748 00000000016b3778 ffffffffffffffff",
    ),
    (Origin(0x1_00000002, "dc"), "4f 0000000100000002 646300"),
    (
        Relation(
            16384,
            "s",
            "t",
            "d",
            (Column("id", 20, -1, is_key=True), Column("ü", 1043, 14, is_key=False)),
        ),
        "52 00004000 7300 7400 64 0002 01 696400 00000014 ffffffff  00 c3bc00 00000413 0000000e",
    ),
    (Relation(1, "pg_catalog", "t", "n", ()), "52 00000001 00 7400 6e 0000"),
    (TypeInfo(16390, "public", "mood"), "59 00004006 7075626c696300 6d6f6f6400"),
    (
        Insert(16384, (b"1", None, b"", UNCHANGED)),
        "49 00004000 4e 0004 74 00000001 31 6e 74 00000000 75",
    ),
    (
        Update(16384, None, is_whole_old=False, new=(b"1", UNCHANGED)),
        "55 00004000 4e 0002 74 00000001 31 75",
    ),
    (
        Update(16384, (b"1", None), is_whole_old=False, new=(b"2", None)),
        "55 00004000 4b 0002 74 00000001 31 6e 4e 0002 74 00000001 32 6e",
    ),
    (
        Update(16384, (b"1",), is_whole_old=True, new=(b"2",)),
        "55 00004000 4f 0001 74 00000001 31 4e 0001 74 00000001 32",
    ),
    (Delete(16384, (b"1", None), is_whole_old=False), "44 00004000 4b 0002 74 00000001 31 6e"),
    (Delete(16384, (b"1",), is_whole_old=True), "44 00004000 4f 0001 74 00000001 31"),
    (Truncate((1, 2), cascade=True, restart_identity=False), "54 00000002 01 00000001 00000002"),
    (Truncate((7,), cascade=False, restart_identity=True), "54 00000001 02 00000007"),
    (
        LogicalMessage(transactional=True, lsn=0x16B3748, prefix="p", content=b"\0a"),
        "4d 01 00000000016b3748 7000 00000002 0061",
    ),
    (
        LogicalMessage(transactional=False, lsn=1, prefix="", content=b""),
        "4d 00 0000000000000001 00 00000000",
    ),
]


@pytest.mark.parametrize(("message", "data"), EXAMPLES, ids=lambda case: type(case).__name__)
def test_each_message_has_the_bytes_of_the_manual(message: Any, data: str) -> None:
    """Hand-written bytes decode to the message, and the encoder of these tests agrees."""
    decoded = decode_message(bytes.fromhex(data))
    assert decoded == message
    assert type(decoded) is type(message)
    assert encode(message) == bytes.fromhex(data)


UINT32 = st.integers(0, (1 << 32) - 1)
UINT64 = st.integers(0, (1 << 64) - 1)
TIMES = st.integers(AT_2000 - (1 << 63), AT_2000 + (1 << 63) - 1)
NAMES = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    st.binary().map(lambda raw: raw.replace(b"\0", b"?").decode(errors="surrogateescape")),
)
SCHEMAS = NAMES.map(lambda name: name or "pg_catalog")
ROWS = st.lists(st.none() | st.just(UNCHANGED) | st.binary(max_size=300), max_size=12).map(tuple)
COLUMNS = st.builds(Column, NAMES, UINT32, st.integers(-(1 << 31), (1 << 31) - 1), st.booleans())
MESSAGES = st.one_of(
    st.builds(Begin, UINT64, TIMES, UINT32),
    st.builds(Commit, UINT64, UINT64, TIMES),
    st.builds(Origin, UINT64, NAMES),
    st.builds(
        Relation,
        UINT32,
        SCHEMAS,
        NAMES,
        st.sampled_from("dnfi"),
        st.lists(COLUMNS, max_size=6).map(tuple),
    ),
    st.builds(TypeInfo, UINT32, SCHEMAS, NAMES),
    st.builds(Insert, UINT32, ROWS),
    st.builds(Update, UINT32, st.none(), st.just(value=False), ROWS),
    st.builds(Update, UINT32, ROWS, st.booleans(), ROWS),
    st.builds(Delete, UINT32, ROWS, st.booleans()),
    st.builds(Truncate, st.lists(UINT32, max_size=6).map(tuple), st.booleans(), st.booleans()),
    st.builds(LogicalMessage, st.booleans(), UINT64, NAMES, st.binary()),
)


@given(MESSAGES)
def test_every_message_round_trips(message: Any) -> None:
    """The bytes of any message decode to a message of its type and its values."""
    decoded = decode_message(encode(message))
    assert decoded == message
    assert type(decoded) is type(message)


@given(MESSAGES)
def test_every_truncation_is_refused(message: Any) -> None:
    """A message without its last bytes is an error, wherever it is cut."""
    data = encode(message)
    for end in range(len(data)):
        with pytest.raises(ProtocolError, match=r"is cut off|empty replication message"):
            decode_message(data[:end])


@given(MESSAGES, st.binary(min_size=1, max_size=9))
def test_bytes_left_over_are_refused(message: Any, rest: bytes) -> None:
    """A message with further bytes is an error that names the byte where it should end."""
    data = encode(message)
    kind, left = chr(data[0]), len(rest)
    place = f"message '{kind}' has {left} bytes left over at byte {len(data)};"
    with pytest.raises(ProtocolError, match=re.escape(place)):
        decode_message(data + rest)


def damage(message: Any, at: int, with_: bytes) -> bytes:
    """Return the bytes of *message* with some replaced at a place within."""
    data = encode(message)
    at %= len(data)
    return data[:at] + with_ + data[at + len(with_) :]


@given(
    st.binary(max_size=60) | st.builds(damage, MESSAGES, UINT32, st.binary(min_size=1, max_size=4))
)
def test_any_bytes_decode_to_what_encodes_to_them_or_are_refused(data: bytes) -> None:
    """Arbitrary and damaged bytes raise only ``ProtocolError``, or are a message to the byte."""
    try:
        message = decode_message(data)
    except ProtocolError:
        return
    assume("pg_catalog" not in message)  # It is sent as an empty name.
    assert encode(message) == data


def test_unknown_kinds_are_refused() -> None:
    """A message of any other kind is an error that shows the kind and says what to check."""
    for kind in set(range(256)) - set(b"BCDIMORTUY" + b"SEcAbPKrp"):
        shown = re.escape(repr(bytes([kind]))[1:])
        text = rf"message {shown} at byte 0 is unknown; check .* pgoutput"
        with pytest.raises(ProtocolError, match=text):
            decode_message(bytes([kind]) + bytes(30))


@pytest.mark.parametrize(("kinds", "option"), [("SEcA", "streaming"), ("bPKrp", "two_phase")])
def test_messages_of_options_are_refused(kinds: str, option: str) -> None:
    """Messages that an unsupported option adds are refused with the option's name."""
    for kind in kinds:
        with pytest.raises(ProtocolError, match=f"message '{kind}' belongs to the option {option}"):
            decode_message(kind.encode() + bytes(30))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("49 00000001 4e 0002 6e 62 00000000", "'I' has, in column 2 at byte 9, a value in binary"),
        ("49 00000001 4e 0001 78", "'I' has, in column 1 at byte 8, a value of the unknown kind"),
        ("49 00000001 4b 0000", "'I' has 'K' at byte 5, where N is expected"),
        ("55 00000001 58 0000", "'U' has 'X' at byte 5, where K, O or N is expected"),
        ("55 00000001 4b 0000 4f 0000", "'U' has 'O' at byte 8, where N is expected"),
        ("44 00000001 4e 0000", "'D' has 'N' at byte 5, where K or O is expected"),
        ("52 00000001 00 00 78 0000", "'R' has 'x' at byte 7, where d, n, f or i is expected"),
        ("52 00000001 00 00 64 0001 03 00 00000001 00000001", "'R' has the unknown flags 0x2"),
        ("43 01" + "00" * 24, "'C' has the unknown flags 0x1"),
        ("54 00000000 04", "'T' has the unknown flags 0x4"),
        ("54 ffffffff 00 00000001", "'T' is cut off: it ends at byte 10"),
        ("4d 81 0000000000000001 00 00000000", "'M' has the unknown flags 0x80"),
        ("49 00000001 4e 0001 74 ffffffff", "'I' is cut off: it ends at byte 13"),
        ("", "an empty replication message"),
    ],
)
def test_what_is_wrong_within_a_message_is_named(data: str, text: str) -> None:
    """An error names the message's kind, the byte and what was expected there."""
    with pytest.raises(ProtocolError, match=re.escape(text)):
        decode_message(bytes.fromhex(data))


def test_an_error_shows_no_values() -> None:
    """The text of an error has no bytes of a row beyond the one that is wrong."""
    data = encode(Insert(1, (b"secret", b"secret")))
    for wrong in (data[:-1], data + b"secret", data.replace(b"t", b"x", 1)):
        with pytest.raises(ProtocolError) as caught:
            decode_message(wrong)
        assert "secret" not in str(caught.value)


def test_a_protocol_error_is_a_source_error() -> None:
    """It is one of the errors of a reader, is not retried as it is, and survives pickling."""
    error = ProtocolError("x")
    assert isinstance(error, SourceError)
    assert not error.retriable
    assert str(pickle.loads(pickle.dumps(error))) == "x"  # noqa: S301 - our own bytes


def test_names_of_any_bytes_survive() -> None:
    """The bytes of a name that are not UTF-8 are kept, as a SQL_ASCII database may have them."""
    decoded = decode_message(b"Y" + number(4, 1) + b"\xff\0" + b"caf\xe9\0")
    assert isinstance(decoded, TypeInfo)
    assert decoded.schema.encode(errors="surrogateescape") == b"\xff"
    assert decoded.name.encode(errors="surrogateescape") == b"caf\xe9"


def test_unchanged_is_one_object() -> None:
    """The sentinel has a clear form and stays itself when it is copied or pickled."""
    assert repr((UNCHANGED,)) == "(UNCHANGED,)"
    assert copy.deepcopy(UNCHANGED) is UNCHANGED
    assert pickle.loads(pickle.dumps(UNCHANGED)) is UNCHANGED  # noqa: S301 - our own bytes


@given(UINT64, UINT64, TIMES, st.binary(), st.sampled_from([bytes, memoryview]))
def test_xlog_data(
    start: int, end: int, time: int, payload: bytes, view: Callable[[bytes], Any]
) -> None:
    """XLogData gives its three numbers and the plugin's bytes, from bytes or a view of them."""
    head = b"w" + number(8, start) + number(8, end) + number(8, time - AT_2000)
    decoded = decode_copy(view(head + payload))
    assert decoded == XLogData(start, end, time, payload)
    assert isinstance(decoded, XLogData)
    assert isinstance(decoded.payload, bytes)
    for size in range(len(head)):
        with pytest.raises(ProtocolError, match=r"is not its size|at byte 0 is unknown"):
            decode_copy(view(head[:size]))


@given(UINT64, TIMES, st.booleans(), st.sampled_from([bytes, memoryview]))
def test_keepalive(end: int, time: int, reply: bool, view: Callable[[bytes], Any]) -> None:
    """A keepalive gives the log's end, the clock and the request. Any other length is refused."""
    data = b"k" + number(8, end) + number(8, time - AT_2000) + number(1, reply)
    decoded = decode_copy(view(data))
    assert decoded == Keepalive(end, time, reply)
    assert isinstance(decoded, Keepalive)
    assert isinstance(decoded.reply_requested, bool)
    for wrong in (*(data[:size] for size in range(len(data))), data + b"\0"):
        with pytest.raises(ProtocolError, match=r"is not its size|at byte 0 is unknown"):
            decode_copy(view(wrong))


def test_other_copy_data_is_refused() -> None:
    """CopyData of any other kind is an error that shows the kind."""
    for kind in set(range(256)) - set(b"wk"):
        shown = re.escape(repr(bytes([kind]))[1:])
        with pytest.raises(ProtocolError, match=f"message {shown} at byte 0 is unknown"):
            decode_copy(bytes([kind]) + bytes(24))


def test_a_keepalive_with_another_reply_byte_is_refused() -> None:
    """The byte that requests a reply is 0 or 1."""
    with pytest.raises(ProtocolError, match="'k' has the unknown flags 0x2"):
        decode_copy(b"k" + bytes(16) + b"\2")


@given(UINT64, TIMES, st.booleans())
def test_a_status_update_has_the_bytes_of_the_manual(lsn: int, now: int, reply: bool) -> None:
    """All three positions are the same, and the clock counts from 2000."""
    expected = b"r" + number(8, lsn) * 3 + number(8, now - AT_2000) + number(1, reply)
    assert encode_status(lsn, now, reply_requested=reply) == expected
    assert len(expected) == 34
