"""Bytes of a real server's pgoutput, decoded and compared with what was done to its tables."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import until
from psycopg import pq
from transporter_adaptors.postgres_cdc.lsn import format_lsn, parse_lsn
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

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.postgres import Database

pytestmark = pytest.mark.postgres
CHANGES = (
    "SELECT lsn::text, data FROM pg_logical_slot_get_binary_changes('s', NULL, NULL,"
    " 'proto_version', %s, 'publication_names', 'p', 'messages', 'true')"
)
LARGE = "string_agg(md5(i::text), '') FROM generate_series(1, 400) AS i"
"""12 800 characters that do not compress, so that they are stored outside the row."""


@pytest.fixture
def source(postgres: Database) -> Iterator[Database]:
    """Yield a database with a publication of all tables and a slot. Both are dropped."""
    postgres.execute("CREATE PUBLICATION p FOR ALL TABLES")
    postgres.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    yield postgres
    postgres.execute("SELECT pg_drop_replication_slot('s')")
    postgres.execute("DROP PUBLICATION p")


def run(source: Database, *statements: str) -> None:
    """Run *statements* in one transaction."""
    with source.connect(autocommit=False) as connection:
        for statement in statements:
            connection.execute(statement)


def raw_changes(source: Database, version: str = "1") -> list[tuple[int, bytes]]:
    """Return what was committed since the last call: the position and bytes of each message."""
    found = source.execute(CHANGES, [version])
    return [(parse_lsn(lsn), data) for lsn, data in found]


def decode_all(found: list[tuple[Any, bytes]]) -> list[Any]:
    """Return the decoded messages of *found*."""
    return [decode_message(data) for _, data in found]


def changes(source: Database, version: str = "1") -> list[Any]:
    """Return what was committed since the last call, without Begin and Commit."""
    decoded = decode_all(raw_changes(source, version))
    return [message for message in decoded if not isinstance(message, Begin | Commit)]


def oid_of(source: Database, name: str) -> int:
    """Return the OID of the table *name*."""
    return int(source.execute("SELECT %s::regclass::oid", [name])[0][0])


@pytest.mark.parametrize("version", ["1", "2", "3", "4"])
def test_inserts_in_a_transaction(source: Database, version: str) -> None:
    """A transaction is framed by its commit, and its tables and types come before their rows."""
    with source.connect() as connection:
        if connection.info.server_version < {"3": 150_000, "4": 160_000}.get(version, 0):
            pytest.skip(f"the server does not have version {version} of the protocol")
    run(
        source,
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        'CREATE TABLE "a.""b" (id bigint PRIMARY KEY, "naïve" varchar(10), m mood, n numeric(8,2))',
    )
    changes(source)
    before = time.time() * 1e6
    run(source, """INSERT INTO "a.""b" VALUES (1, 'ä', 'ok', 1.5), (2, NULL, NULL, NULL)""")
    after = time.time() * 1e6
    begin, mood, relation, first, second, commit = decode_all(raw_changes(source, version))
    oid, type_oid = oid_of(source, '"a.""b"'), source.execute("SELECT 'mood'::regtype::oid")[0][0]
    assert isinstance(begin, Begin)
    assert isinstance(commit, Commit)
    assert commit == Commit(begin.commit_lsn, commit.end_lsn, begin.committed_at_us)
    assert commit.commit_lsn < commit.end_lsn
    assert before - 1e6 <= commit.committed_at_us <= after + 1e6
    assert mood == TypeInfo(type_oid, "public", "mood")
    assert relation == Relation(
        oid,
        "public",
        'a."b',
        "d",
        (
            Column("id", 20, -1, is_key=True),
            Column("naïve", 1043, 14, is_key=False),
            Column("m", type_oid, -1, is_key=False),
            Column("n", 1700, (8 << 16 | 2) + 4, is_key=False),
        ),
    )
    assert first == Insert(oid, (b"1", "ä".encode(), b"ok", b"1.50"))
    assert second == Insert(oid, (b"2", None, None, None))
    assert source.execute('SELECT xmin::text::bigint FROM "a.""b" WHERE id = 1') == [(begin.xid,)]


def test_updates_and_deletes_by_the_primary_key(source: Database) -> None:
    """The old key comes only when it changed, and a large value that did not change is named."""
    run(source, "CREATE TABLE t (id int PRIMARY KEY, small text, large text)")
    run(source, f"INSERT INTO t SELECT 1, 'a', {LARGE}")
    relation, insert = changes(source)
    assert relation.identity == "d"
    assert len(insert.new[2]) == 12_800
    run(source, "UPDATE t SET small = 'b'", "UPDATE t SET id = 2", "UPDATE t SET large = ''")
    run(source, "DELETE FROM t")
    oid = relation.oid
    assert [message for message in changes(source) if message != relation] == [
        Update(oid, None, is_whole_old=False, new=(b"1", b"b", UNCHANGED)),
        Update(oid, (b"1", None, None), is_whole_old=False, new=(b"2", b"b", UNCHANGED)),
        Update(oid, None, is_whole_old=False, new=(b"2", b"b", b"")),
        Delete(oid, (b"2", None, None), is_whole_old=False),
    ]


def test_identity_full(source: Database) -> None:
    """The whole old row comes with updates and deletes, large values included."""
    run(
        source,
        "CREATE TABLE t (id int, small text, large text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    run(source, f"INSERT INTO t SELECT 1, NULL, {LARGE}")
    run(source, "UPDATE t SET small = 'b'", "DELETE FROM t")
    relation, insert, update, delete = changes(source)
    oid, large = relation.oid, insert.new[2]
    assert relation.identity == "f"
    assert all(column.is_key for column in relation.columns)
    assert len(large) == 12_800
    assert update == Update(
        oid, (b"1", None, large), is_whole_old=True, new=(b"1", b"b", UNCHANGED)
    )
    assert delete == Delete(oid, (b"1", b"b", large), is_whole_old=True)


def test_identity_index(source: Database) -> None:
    """The key is the index's, and a large one comes as the old key although it did not change."""
    run(
        source,
        "CREATE TABLE t (id int PRIMARY KEY, small text, code text NOT NULL)",
        "ALTER TABLE t ALTER code SET STORAGE EXTERNAL",
        "CREATE UNIQUE INDEX code ON t (code)",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX code",
    )
    run(source, "INSERT INTO t VALUES (1, 'a', repeat('x', 2500))")
    run(source, "UPDATE t SET small = 'b'", "UPDATE t SET code = 'y'", "UPDATE t SET id = 2")
    run(source, "DELETE FROM t")
    relation, _, *rest = changes(source)
    oid, large = relation.oid, b"x" * 2500
    assert relation.identity == "i"
    assert [column.name for column in relation.columns if column.is_key] == ["code"]
    assert rest == [
        Update(oid, (None, None, large), is_whole_old=False, new=(b"1", b"b", UNCHANGED)),
        Update(oid, (None, None, large), is_whole_old=False, new=(b"1", b"b", b"y")),
        Update(oid, None, is_whole_old=False, new=(b"2", b"b", b"y")),
        Delete(oid, (None, None, b"y"), is_whole_old=False),
    ]


def test_truncate(source: Database) -> None:
    """All truncated relations come in one message, with the two options of the statement."""
    run(
        source,
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (id int PRIMARY KEY REFERENCES parent)",
    )
    parent, child = oid_of(source, "parent"), oid_of(source, "child")
    run(source, "TRUNCATE parent CASCADE")
    run(source, "TRUNCATE child RESTART IDENTITY")
    first, second = (each for each in changes(source) if not isinstance(each, Relation))
    assert isinstance(first, Truncate)
    assert first == Truncate((parent, child), cascade=True, restart_identity=False)
    assert second == Truncate((child,), cascade=False, restart_identity=True)


def test_a_table_altered_within_a_transaction(source: Database) -> None:
    """The new definition comes where the statement stood, before the first row that has it."""
    run(source, "CREATE TABLE t (id int PRIMARY KEY, gone text)")
    run(
        source,
        "INSERT INTO t VALUES (1, 'a')",
        "ALTER TABLE t DROP gone, ADD added numeric(5) DEFAULT 7",
        "INSERT INTO t VALUES (2)",
        "ALTER TABLE t RENAME TO renamed",
        "UPDATE renamed SET id = 3 WHERE id = 1",
    )
    before, first, after, second, renamed, update = changes(source)
    oid = oid_of(source, "renamed")
    key, added = Column("id", 23, -1, is_key=True), (5 << 16) + 4
    columns = (key, Column("added", 1700, added, is_key=False))
    assert before == Relation(oid, "public", "t", "d", (key, Column("gone", 25, -1, is_key=False)))
    assert first == Insert(oid, (b"1", b"a"))
    assert after == Relation(oid, "public", "t", "d", columns)
    assert second == Insert(oid, (b"2", b"7"))
    assert renamed == Relation(oid, "public", "renamed", "d", columns)
    assert update == Update(oid, (b"1", None), is_whole_old=False, new=(b"3", b"7"))


def test_logical_messages(source: Database) -> None:
    """A message comes with its bytes and position, at once or with its transaction."""
    emit = "SELECT pg_logical_emit_message({}, 'préfixe', '\\x00ff'::bytea)::text"
    with source.connect(autocommit=False) as connection:
        (inside,) = connection.execute(emit.format("true")).fetchone()
        (outside,) = connection.execute(emit.format("false")).fetchone()
    at_once, begin, within, commit = decode_all(raw_changes(source))
    assert isinstance(begin, Begin)
    assert isinstance(commit, Commit)
    assert [at_once, within] == [
        LogicalMessage(transactional=is_inside, lsn=lsn, prefix="préfixe", content=b"\0\xff")
        for is_inside, lsn in ((False, parse_lsn(outside)), (True, parse_lsn(inside)))
    ]


def test_origins(source: Database) -> None:
    """A transaction that was replicated here names its origin, and its commit's place there."""
    run(source, "CREATE TABLE t (id int PRIMARY KEY)")
    name = f"origin-{source.name}"
    source.execute("SELECT pg_replication_origin_create(%s)", [name])
    with source.connect(autocommit=False) as connection:
        connection.execute("SELECT pg_replication_origin_session_setup(%s)", [name])
        connection.execute("SELECT pg_replication_origin_xact_setup('1/16B3748', now())")
        connection.execute("INSERT INTO t VALUES (1)")
    origin, _, insert = changes(source)
    source.execute("SELECT pg_replication_origin_drop(%s)", [name])
    assert isinstance(origin, Origin)
    assert origin == Origin(parse_lsn("1/16B3748"), name)
    assert insert.new == (b"1",)


def test_options_that_are_not_supported(source: Database) -> None:
    """Messages of a server with the options binary or streaming are refused by name."""
    run(source, "CREATE TABLE t (id int PRIMARY KEY, name text)")
    run(source, "INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 2000) AS i")
    peek = CHANGES.replace("_get_", "_peek_").replace(", 'messages', 'true'", ", '{}', 'true'")
    with source.connect() as connection:
        connection.execute("SET logical_decoding_work_mem = '64kB'")
        for option in ("binary", "streaming"):
            found = connection.execute(peek.format(option), ["2"]).fetchall()
            with pytest.raises(ProtocolError, match=option):
                decode_all(found)


@contextmanager
def replicating(source: Database) -> Iterator[pq.PGconn]:
    """Open a replication session that streams from the slot."""
    session = pq.PGconn.connect(f"{source.dsn} replication=database".encode())
    try:
        result = session.exec_(
            b"START_REPLICATION SLOT s LOGICAL 0/0 (proto_version '1', publication_names 'p')"
        )
        assert result.status == pq.ExecStatus.COPY_BOTH, result.error_message
        yield session
    finally:
        session.finish()
        await_inactive_slot(source)


def await_inactive_slot(source: Database) -> None:
    """Wait until the server has noticed the end of the session, so that the slot can go."""
    deadline = time.monotonic() + 30
    while source.execute("SELECT active FROM pg_replication_slots") != [(False,)]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_replication_session(source: Database) -> None:
    """The messages of a walsender decode, and the slot moves to the position of a status update."""
    run(source, "CREATE TABLE t (id int PRIMARY KEY)")
    run(source, "INSERT INTO t VALUES (1)")
    received: list[Any] = []
    with replicating(source) as session:
        while not any(isinstance(message, Commit) for message in received):
            _, data = session.get_copy_data(0)
            outer = decode_copy(data)
            assert abs(outer.sent_at_us - time.time() * 1e6) < 60e6
            if isinstance(outer, XLogData):
                received.append(decode_message(outer.payload))
                if [type(message) for message in received] == [Begin, Commit]:
                    # Before version 15 a transaction without changes is sent, too.
                    received.clear()
        end = received[-1].end_lsn
        session.put_copy_data(encode_status(end, int(time.time() * 1e6), reply_requested=True))
        session.flush()
        outer = decode_copy(session.get_copy_data(0)[1])
        assert isinstance(outer, Keepalive)
        assert outer.end >= end
        assert not outer.reply_requested
        # That keepalive may be one that the server has sent by itself, before it had the status.
        positions = (
            "SELECT write_lsn::text, flush_lsn::text, replay_lsn::text, confirmed_flush_lsn::text"
            " FROM pg_stat_replication JOIN pg_replication_slots ON active_pid = pid"
            " WHERE slot_name = 's'"
        )
        until(lambda: source.execute(positions) == [(format_lsn(end),) * 4])
    assert [type(message) for message in received] == [Begin, Relation, Insert, Commit]
