"""``claim: take`` of the outbox reader, on a real PostgreSQL."""

from __future__ import annotations

import json
from contextlib import contextmanager
from threading import Timer
from time import monotonic
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from outbox_tools import Log, ids, insert, kill_readers, messages, read, readers, remaining
from psycopg.conninfo import make_conninfo
from transporter_adaptors.postgres.outbox import Outbox

from transporter.errors import SourceError, SourceUnavailable
from transporter.outbox import outbox_sql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from services.postgres import Database

pytestmark = pytest.mark.postgres


@pytest.fixture
def opened(postgres: Database) -> Iterator[Callable[..., Any]]:
    """Open readers with ``claim: take``, and close all at the end."""
    with readers(postgres, "take") as opener:
        yield opener


def put(at: Database, number: int) -> None:
    """Insert a row with this id."""
    at.execute("INSERT INTO outbox (id, kafka_topic, kafka_key) VALUES (%s, 't', 'k')", [number])


def sessions(database: Database) -> list[tuple[Any, ...]]:
    """Return state and snapshot of each reader's session."""
    return database.execute(
        "SELECT state, backend_xmin IS NOT NULL OR backend_xid IS NOT NULL FROM pg_stat_activity"
        " WHERE application_name = 'transporter' AND datname = current_database()"
    )


# --- the purge (Invariant 7)


def test_rows_that_commit_in_between_stay(outbox: Database, opened: Callable[..., Any]) -> None:
    """Rows between the copied ids, below them or above them are not deleted."""
    for number in (10, 20, 30):
        put(outbox, number)
    reader = opened()
    batch = reader.poll(5)
    for number in (5, 15, 25, 35):
        put(outbox, number)
    reader.commit(batch.position)
    assert ids(batch) == [10, 20, 30]
    assert remaining(outbox) == [5, 15, 25, 35]
    assert read(reader) == [5, 15, 25, 35]
    assert remaining(outbox) == []


def test_late_rows_are_deleted_one_by_one(outbox: Database, opened: Callable[..., Any]) -> None:
    """Rows in gaps are named, so a neighbour that commits after the copy survives."""
    reader = opened(poll_interval=60)
    put(outbox, 10)
    assert read(reader) == [10]
    reader._pace.record_sweep(monotonic(), monotonic() + 60)  # leaves the rows to the gaps
    for number in (2, 6, 11):
        put(outbox, number)
    batch = reader.poll(5)
    assert ids(batch) == [2, 6, 11]
    for number in (4, 12):
        put(outbox, number)
    reader.commit(batch.position)
    assert remaining(outbox) == [4, 12]
    assert read(reader) == [4, 12]


def test_late_rows_count_for_the_bounds(outbox: Database, opened: Callable[..., Any]) -> None:
    """A batch takes the lowest ids first, in gaps or not, and leaves the rest whole."""
    reader = opened(batch_rows=3, poll_interval=60)
    put(outbox, 10)
    assert read(reader) == [10]
    for number in (2, 4, 11, 12, 13):
        put(outbox, number)
    assert [read(reader) for _ in range(2)] == [[2, 4, 11], [12, 13]]
    assert remaining(outbox) == []


def test_a_delete_that_hits_other_rows_is_undone(
    outbox: Database, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the snapshot the count reveals it, and only logged rows are deleted."""
    begin = b"BEGIN ISOLATION LEVEL READ COMMITTED"
    monkeypatch.setattr(Outbox, "begin", lambda outbox: outbox._run_command(begin))
    put(outbox, 10)
    put(outbox, 20)
    reader = opened()
    batch = reader.poll(5)
    put(outbox, 15)
    reader.commit(batch.position)
    assert remaining(outbox) == [15]


def test_rows_that_someone_changed_are_not_deleted(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """After a serialization failure the rest of the batch is purged by content, at once."""
    for letter in "abc":
        insert(outbox, value=letter)
    reader = opened()
    batch = reader.poll(5)
    outbox.execute("UPDATE outbox SET kafka_value = 'other' WHERE id = 2")
    outbox.execute("DELETE FROM outbox WHERE id = 3")
    reader.commit(batch.position)
    assert remaining(outbox) == [2]
    assert sessions(outbox) == [("idle", False)]


# --- crashes and lost connections


def test_a_crash_before_the_commit_is_recognised(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """A batch that was logged but not deleted leaves the table at the next open, unread."""
    log = Log()
    for number in range(3):
        insert(outbox, value=str(number))
    reader = opened(log)
    log.append(reader.poll(5))
    reader.close()
    assert remaining(outbox) == [1, 2, 3]
    again = opened(log)
    assert remaining(outbox) == []
    assert read(again, 0) == []


def fail_by_kill(reader: Any, outbox: Database) -> None:
    """End the session while its transaction is open."""
    kill_readers(outbox)


def fail_by_timeout(reader: Any, outbox: Database) -> None:
    """Wait until the server ends the session of an engine that cannot append."""
    deadline = monotonic() + 20
    while sessions(outbox) and monotonic() < deadline:
        outbox.execute("SELECT pg_sleep(0.05)")
    assert sessions(outbox) == []


def fail_after_commit(reader: Any, outbox: Database) -> None:
    """Lose the answer to the COMMIT."""
    commit = reader._outbox.commit

    def lost() -> None:
        commit()
        raise SourceUnavailable("lost")

    reader._outbox.commit = lost


@pytest.mark.parametrize("fail", [fail_by_kill, fail_by_timeout, fail_after_commit])
def test_a_failed_purge_neither_loses_nor_repeats(
    outbox: Database, opened: Callable[..., Any], fail: Callable[[Any, Database], None]
) -> None:
    """For any outcome of the transaction after the append, each row is in the log once."""
    log = Log()
    for number in range(6):
        insert(outbox, value=str(number))
    reader = opened(log, batch_rows=4)
    if fail is fail_by_timeout:
        reader._connection.execute("SET idle_in_transaction_session_timeout = '100ms'")
    batch = reader.poll(5)
    log.append(batch)
    fail(reader, outbox)
    with pytest.raises(SourceUnavailable):
        reader.commit(batch.position)
    reader.close()
    insert(outbox, value="6")
    again = opened(log, batch_rows=4)
    while (batch := again.poll(0.1)).position is not None:
        log.append(batch)
        again.commit(batch.position)
    assert [message.data for message in log.messages] == [b"%d" % n for n in range(7)]
    assert remaining(outbox) == []


def test_a_batch_that_waits_for_room_holds_no_transaction(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """While the log is full nothing blocks VACUUM, and rows logged later are purged exactly."""
    for number in range(3):
        insert(outbox, value=str(number))
    log = Log()
    reader = opened(log)
    batch = reader.poll(5)
    assert sessions(outbox) == [("idle in transaction", True)]
    reader.keep_alive()
    assert sessions(outbox) == [("idle", False)]
    assert reader.poll(0).position is None
    insert(outbox, value="3")
    log.append(batch)
    reader.commit(batch.position)
    assert (ids(batch), remaining(outbox)) == ([1, 2, 3], [4])
    assert read(reader) == [4]
    assert remaining(outbox) == []


def test_an_unlogged_batch_is_read_again(outbox: Database, opened: Callable[..., Any]) -> None:
    """Rows whose session ended before the append are in the table, unmarked."""
    insert(outbox)
    reader = opened()
    assert ids(reader.poll(5)) == [1]
    reader.close()
    assert outbox.execute("SELECT id, leader_id FROM outbox") == [(1, None)]
    assert read(opened()) == [1]


# --- the transaction


def test_an_idle_reader_has_no_transaction(outbox: Database, opened: Callable[..., Any]) -> None:
    """A transaction and its snapshot are open only from a look with rows to their purge."""
    reader = opened(poll_interval=0.02)
    assert read(reader, 0.1) == []
    assert sessions(outbox) == [("idle", False)]
    outbox.execute("NOTIFY outbox")
    assert read(reader, 0.1) == []
    assert sessions(outbox) == [("idle", False)]
    insert(outbox)
    batch = reader.poll(5)
    assert sessions(outbox) == [("idle in transaction", True)]
    reader.commit(batch.position)
    assert sessions(outbox) == [("idle", False)]


def test_a_failed_look_leaves_no_transaction(outbox: Database, opened: Callable[..., Any]) -> None:
    """A copy that waits too long for a lock is aborted, and the next one works."""
    reader = opened()
    insert(outbox)
    with outbox.connect(autocommit=False) as blocker:
        blocker.execute("LOCK TABLE outbox")
        reader._connection.execute("SET lock_timeout = '50ms'")
        with pytest.raises(SourceUnavailable, match="lock timeout"):
            reader.poll(5)
        assert sessions(outbox) == [("idle", False)]
    assert read(reader) == [1]


def test_the_server_ends_what_we_cannot(outbox: Database, opened: Callable[..., Any]) -> None:
    """The session has the server end transactions that idle for longer than a minute."""
    found = opened()._connection.execute("SHOW idle_in_transaction_session_timeout").fetchone()
    assert found == ("1min",)


def test_nothing_is_read_before_the_commit(outbox: Database, opened: Callable[..., Any]) -> None:
    """A poll while a batch is open returns nothing, at once, and does not affect the batch."""
    insert(outbox)
    insert(outbox)
    reader = opened(batch_rows=1)
    batch = reader.poll(5)
    began = monotonic()
    assert ids(reader.poll(30)) == []
    assert monotonic() - began < 10
    reader.commit(batch.position)
    assert remaining(outbox) == [2]
    assert read(reader) == [2]


def test_taking_and_marking_follow_one_another(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """A taking reader takes rows left by a marking one, and the other way round."""
    insert(outbox)
    first = opened(claim="mark")
    assert ids(first.poll(5)) == [1]
    first.close()
    second = opened(claim="take")
    assert ids(second.poll(5)) == [1]
    second.close()
    assert read(opened(claim="mark")) == [1]
    assert remaining(outbox) == []


# --- terms (Invariant 10)


def test_a_delete_that_waits_for_a_new_term_does_nothing(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """A term that ends while the delete waits for its row ends the reader, without a retry."""
    insert(outbox)
    reader = opened()
    batch = reader.poll(5)
    with outbox.connect(autocommit=False) as rival:
        rival.execute("UPDATE transporter_term SET term = term + 1")
        timer = Timer(0.3, rival.commit)
        timer.start()
        with pytest.raises(SourceError, match="fenced") as fenced:
            reader.commit(batch.position)
        timer.join()
    assert not fenced.value.retriable
    assert remaining(outbox) == [1]


def test_a_new_term_does_not_wait_for_the_log(outbox: Database, opened: Callable[..., Any]) -> None:
    """While a batch is being appended its transaction locks neither the term nor the rows."""
    insert(outbox)
    old = opened()
    batch = old.poll(5)
    new = opened()
    new._connection.execute("SET lock_timeout = '2s'")
    assert read(new) == [1]
    assert remaining(outbox) == []
    old.commit(batch.position)
    with pytest.raises(SourceError, match="fenced"):
        old.poll(5)


# --- exactness, for both claims

AWKWARD = [
    *(
        "",
        " ",
        "NULL",
        "null",
        "a,b",
        '"',
        '""',
        "\\",
        "\\.",
        "{",
        "}",
        "{}",
        "{{",
        "'",
        "\n",
        "\r\n",
    ),
    *("\t", "\x01", "ü", "鍵🐎", "a\u2028b", '{"a": "b\\n"}', "x" * 1_000_000),
]


@pytest.mark.parametrize("claim", ["mark", "take"])
def test_every_text_arrives_as_it_is(
    outbox: Database, opened: Callable[..., Any], claim: str
) -> None:
    """Keys, values and headers keep every character, and NULL differs from empty."""
    headers: list[tuple[str, str | None]] = [(text, text) for text in AWKWARD if len(text) < 100]
    headers.append(("none", None))
    names, contents = [name for name, _ in headers], [value for _, value in headers]
    for text in AWKWARD:
        insert(outbox, key=text, value=text)
    insert(outbox, value=None, keys=names, values=contents)
    found = messages(opened(claim=claim, batch_bytes="64MiB").poll(5))
    assert [(message.key, message.data) for message in found] == [
        *((text.encode(), text.encode()) for text in AWKWARD),
        (b"k", None),
    ]
    assert found[-1].headers == tuple(
        (name, None if value is None else value.encode()) for name, value in headers
    )


@pytest.mark.parametrize("claim", ["mark", "take"])
def test_sound_rows_are_not_read_twice(
    outbox: Database,
    opened: Callable[..., Any],
    claim: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only a bad row, or an array with custom bounds, is read again from the table."""
    reads: list[list[int]] = []
    read_rows = Outbox.read_rows
    monkeypatch.setattr(
        Outbox,
        "read_rows",
        lambda self, numbers: reads.append(list(numbers)) or read_rows(self, numbers),
    )
    reader = opened(claim=claim)
    insert(outbox, keys=["a", "b c", "d"], values=["", None, "x y"])
    insert(outbox, value=None)
    assert read(reader) == [1, 2]
    assert reads == []
    outbox.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_header_keys, kafka_header_values)"
        " VALUES ('t', 'k', '[5:6]={a,b}', '{1,2}')"
    )
    batch = reader.poll(5)
    assert messages(batch)[0].headers == (("a", b"1"), ("b", b"2"))
    assert reads == [[3]]


@contextmanager
def encoded(postgres: Database, encoding: str) -> Iterator[str]:
    """Create a database in another encoding and yield its connection string."""
    name = f"{postgres.name}_{encoding.lower()}"
    postgres.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'")
    yield make_conninfo(postgres.dsn, dbname=name)
    postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("claim", ["mark", "take"])
@pytest.mark.parametrize(
    ("encoding", "literal", "value"),
    [
        ("LATIN1", "E'\\xfcber'", "über".encode()),
        ("EUC_JP", "E'\\xb8\\xb0'", "鍵".encode()),
        ("SQL_ASCII", "E'\\xe9\\x8d\\xb5'", "鍵".encode()),
    ],
)
def test_other_encodings_arrive_as_utf8(
    postgres: Database,
    opened: Callable[..., Any],
    claim: str,
    encoding: str,
    literal: str,
    value: bytes,
) -> None:
    """The bytes of a text are counted as sent, not as stored by the server."""
    with encoded(postgres, encoding) as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(outbox_sql())
            connection.execute(f"SET client_encoding = '{encoding}'")
            for text in (literal, "'plain'"):
                connection.execute(
                    "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys,"
                    f" kafka_header_values) VALUES ('t', 'k', {text}, '{{h}}', ARRAY[{text}])"
                )
        reader = opened(claim=claim, dsn=dsn)
        found = messages(reader.poll(5))
        reader.close()
    headers: list[Any] = [(("h", value),), (("h", b"plain"),)]
    assert [message.data for message in found] == [value, b"plain"]
    assert [message.headers for message in found] == headers


@pytest.mark.parametrize("claim", ["mark", "take"])
def test_a_row_that_is_not_utf8_is_a_bad_row(
    postgres: Database, opened: Callable[..., Any], claim: str
) -> None:
    """A row of SQL_ASCII that is not UTF-8 blocks no other row, and keeps its key."""
    log = Log()
    with encoded(postgres, "SQL_ASCII") as dsn:
        with psycopg.connect(dsn, autocommit=True, client_encoding="UTF8") as connection:
            connection.execute(outbox_sql('"Büro"').encode())
            bad, good = "E'\\xfc'", "'ü'"
            rows = [
                [good] * 4,
                *([bad if n == place else good for n in range(4)] for place in range(4)),
            ]
            connection.execute("SET client_encoding = 'SQL_ASCII'")
            for topic, key, value, header in rows:
                connection.execute(
                    'INSERT INTO "Büro" (kafka_topic, kafka_key, kafka_value, kafka_header_keys,'
                    " kafka_header_values)"
                    f" VALUES ({topic}, {key}, {value}, '{{h}}', ARRAY[{header}])".encode()
                )
        reader = opened(log, claim=claim, dsn=dsn, table='"Büro"')
        batch = reader.poll(5)
        log.append(batch)
        reader.close()
        # Its rows are recognised.
        again = opened(log, claim=claim, dsn=dsn, table='"Büro"')
        assert again.poll(0).position is None
        again.close()
        with psycopg.connect(dsn) as connection:
            assert connection.execute('SELECT id FROM "Büro"'.encode()).fetchall() == []
    found = log.messages
    assert [[name for name, _ in message.headers] for message in found] == [
        ["h"],
        *[["transporter-error"]] * 4,
    ]
    assert [message.key for message in found] == [
        "ü".encode(),
        "ü".encode(),
        b"\xfc",
        *["ü".encode()] * 2,
    ]
    assert json.loads(found[3].data or b"")["kafka_value"] == "\\xfc"
