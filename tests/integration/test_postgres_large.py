"""Rows too large for one append to the log, on a real PostgreSQL."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from outbox_tools import Log, ids, insert, messages, read, readers, remaining
from psycopg.conninfo import make_conninfo
from transporter_adaptors.postgres.outbox import Outbox
from transporter_adaptors.postgres.rows import LARGEST

from transporter.log.commit_log import MAX_APPEND, split_for_append
from transporter.outbox import outbox_sql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from services.postgres import Database

    from transporter.message import Message

pytestmark = pytest.mark.postgres

MIB = 1024**2
SMALL = ("orders", "k")
"""Topic and key of a row: with a value of FITS bytes the row has the largest size accepted."""
FITS = LARGEST - len("".join(SMALL))


@pytest.fixture(params=["mark", "take"])
def claim(request: pytest.FixtureRequest) -> str:
    """Return the way to claim rows: each test must pass with either."""
    return str(request.param)


@pytest.fixture
def opened(postgres: Database, claim: str) -> Iterator[Callable[..., Any]]:
    """Open readers on the database, and close all at the end."""
    with readers(postgres, claim) as opener:
        yield opener


def put(database: Database, size: int) -> int:
    """Insert a row with a value of *size* bytes, which the server makes."""
    ((number,),) = database.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, %s, repeat('x', %s))"
        " RETURNING id",
        [*SMALL, size],
    )
    return int(number)


def reason(message: Message) -> str:
    """Return the reason in the header of a message that stands for a row."""
    ((name, why),) = message.headers
    assert name == "transporter-error"
    return (why or b"").decode()


def log_all(reader: Any, log: Log) -> list[int]:
    """Read, log and commit all rows, and return their ids."""
    found: list[int] = []
    while (batch := reader.poll(0.1)).position is not None:
        parts = list(split_for_append(batch.messages))
        assert parts
        log.append(batch)
        reader.commit(batch.position)
        found += ids(batch)
    return found


@pytest.mark.parametrize("value", [FITS, FITS + 1, MAX_APPEND, 64 * MIB])
def test_what_the_log_takes_is_read_and_more_is_told_of(
    outbox: Database, opened: Callable[..., Any], value: int
) -> None:
    """A row one byte too large stays with an entry in its place, and its neighbours are purged."""
    numbers = [insert(outbox), put(outbox, value), insert(outbox)]
    log = Log()
    reader = opened(log, batch_bytes="64MiB")
    assert log_all(reader, log) == numbers
    before, large, after = log.messages
    assert before.headers == after.headers == ()
    if value == FITS:
        assert (large.data, large.headers) == (b"x" * value, ())
        assert remaining(outbox) == []
        return
    assert remaining(outbox) == [numbers[1]]
    assert (large.namespace, large.key, large.source_id) == ("orders", b"k", "outbox/2")
    assert f"{value + 7} bytes" in reason(large)
    assert "DELETE FROM public.outbox WHERE id = 2" in reason(large)
    document = json.loads(large.data or b"")
    assert document["table"] == "public.outbox"
    assert document["row"]["kafka_key"] == "k"
    assert list(document["row"]) == ["id", "create_time", "kafka_topic", "kafka_key"]
    assert document["bytes"]["kafka_value"] == value


def test_what_it_says_to_run_removes_the_row(outbox: Database, opened: Callable[..., Any]) -> None:
    """The statement in the entry is complete."""
    put(outbox, 9 * MIB)
    put(outbox, 9 * MIB)
    first, _ = messages(opened().poll(5))
    outbox.execute(reason(first).partition("; then ")[2])
    assert remaining(outbox) == [2]


def test_a_large_row_is_told_of_once_a_term(outbox: Database, opened: Callable[..., Any]) -> None:
    """Looks, sweeps and purges in the term do not meet it again, but the next term does."""
    log = Log()
    reader = opened(log, poll_interval=0.01)
    large = put(outbox, 9 * MIB)
    assert log_all(reader, log) == [large]
    outbox.execute("NOTIFY outbox")
    for _ in range(3):
        later = insert(outbox)
        reader._pace._sweep_at = float("-inf")  # the next look is a sweep
        assert log_all(reader, log) == [later]
        assert remaining(outbox) == [large]
    reader.close()
    again = opened(log, poll_interval=0.01)
    assert remaining(outbox) == [large]
    assert log_all(again, log) == [large]
    assert read(again, 0.1) == []
    assert remaining(outbox) == [large]


def test_a_crash_before_the_commit_purges_no_large_row(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """Recognition purges the logged neighbours, and the reported large row stays."""
    log = Log()
    numbers = [insert(outbox), put(outbox, 9 * MIB), insert(outbox)]
    reader = opened(log)
    batch = reader.poll(5)
    log.append(batch)
    assert ids(batch) == numbers
    reader.close()
    again = opened(log)
    assert remaining(outbox) == [numbers[1]]
    assert log_all(again, log) == [numbers[1]]
    assert remaining(outbox) == [numbers[1]]


def test_a_term_that_ends_leaves_large_rows_to_the_next(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """A second engine reports them too, and the first one's purge does not affect them."""
    put(outbox, 9 * MIB)
    old, new = opened(), opened()
    assert ids(new.poll(5)) == [1]
    with pytest.raises(Exception, match="fenced"):
        old.poll(5)
    assert remaining(outbox) == [1]


@pytest.mark.parametrize(
    ("column", "expression"),
    [
        ("kafka_key", "repeat('k', %s)"),
        ("kafka_topic", "repeat('t', %s)"),
        ("kafka_header_values", "ARRAY[repeat('h', %s)]"),
        ("kafka_header_keys", "ARRAY[repeat('h', %s)]"),
        ("kafka_header_values", "array_fill(''::text, ARRAY[%s / 8])"),
        ("kafka_header_values", "array_fill(NULL::text, ARRAY[%s / 8])"),
    ],
)
def test_any_column_may_be_the_large_one(
    outbox: Database, opened: Callable[..., Any], column: str, expression: str
) -> None:
    """The size in the log counts, however well a column compresses in the table."""
    outbox.execute("ALTER TABLE outbox ALTER kafka_topic TYPE varchar")
    values = {"kafka_topic": "'t'", "kafka_key": "'k'", "kafka_value": "'v'"} | {column: expression}
    names = ", ".join(values)
    outbox.execute(f"INSERT INTO outbox ({names}) VALUES ({', '.join(values.values())})", [9 * MIB])
    batch = opened().poll(5)
    (message,) = messages(batch)
    assert "the row is too large" in reason(message)
    assert json.loads(message.data or b"")["bytes"][column] >= 9 * MIB - 8
    assert len(list(split_for_append(batch.messages))) == 1
    assert message.key == (None if column == "kafka_key" else b"k")
    assert message.namespace == ("outbox" if column == "kafka_topic" else "t")


def test_a_bad_row_that_is_too_large_as_json_stays(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """The entry that stands for a bad row must fit into the log as well."""
    log = Log()
    outbox.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys)"
        " VALUES ('t', 'k', repeat(chr(1), %s), '{a}')",
        [3 * MIB],
    )
    insert(outbox)
    reader = opened(log)
    batch = reader.poll(5)
    log.append(batch)
    bad, good = messages(batch)
    assert "the row is too large" in reason(bad)
    assert good.headers == ()
    reader.close()
    again = opened(log)
    assert remaining(outbox) == [1]
    assert log_all(again, log) == [1]
    assert remaining(outbox) == [1]


@pytest.mark.parametrize("claim", ["take"])
def test_a_take_around_large_rows_is_exact(
    outbox: Database, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delete in the snapshot hits exactly the copied rows, and need not be undone."""
    reader = opened(poll_interval=0.01)
    undone: list[bytes] = []
    monkeypatch.setattr(Outbox, "purge_logged", lambda *_: undone.append(b"undone"))
    for expected in ([1, 2, 3], [4, 5, 6]):
        insert(outbox)
        put(outbox, 9 * MIB)
        insert(outbox)
        reader._pace._sweep_at = float("-inf")  # from the first row on, over those that stay
        batch = reader.poll(5)
        assert ids(batch) == expected
        reader.commit(batch.position)
    assert (undone, remaining(outbox)) == ([], [2, 5])


@pytest.mark.parametrize("claim", ["take"])
def test_a_take_around_large_rows_detects_what_it_must_not_delete(
    outbox: Database, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the snapshot the count reveals a row that came in between: it stays, unread."""
    begin = b"BEGIN ISOLATION LEVEL READ COMMITTED"
    monkeypatch.setattr(Outbox, "begin", lambda outbox: outbox._run_command(begin))
    numbers = [insert(outbox), put(outbox, 9 * MIB), insert(outbox)]
    outbox.execute("UPDATE outbox SET id = 5 WHERE id = 3")
    reader = opened()
    batch = reader.poll(5)
    assert ids(batch) == [*numbers[:2], 5]
    outbox.execute("INSERT INTO outbox (id, kafka_topic, kafka_key) VALUES (4, 't', 'k')")
    reader.commit(batch.position)
    assert remaining(outbox) == [2, 4]
    assert read(reader) == [4]


@pytest.mark.parametrize("claim", ["mark"])
def test_what_is_told_as_delivered_purges_no_large_row(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """An operator's skip of the parked entry settles it for the route, not for the table."""
    numbers = [insert(outbox), put(outbox, 9 * MIB), insert(outbox)]
    reader = opened()
    batch = reader.poll(5)
    reader.delivered(batch.position, [1, 2])
    assert remaining(outbox) == numbers[:2]
    reader.delivered(batch.position, [0])
    assert remaining(outbox) == [numbers[1]]


@pytest.mark.exhaustive
def test_many_large_rows_are_one_batch(outbox: Database, opened: Callable[..., Any]) -> None:
    """Each counts with the size of its report, and none is transferred."""
    for _ in range(20):
        put(outbox, 16 * MIB)
    insert(outbox)
    tracemalloc.start()
    batch = opened(batch_bytes="4MiB").poll(10)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert ids(batch) == list(range(1, 22))
    assert peak < 16 * MIB


def test_a_large_row_that_is_made_smaller_is_read(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """After an operator shrinks it, the next term reads it like any other."""
    log = Log()
    reader = opened(log)
    put(outbox, 9 * MIB)
    assert log_all(reader, log) == [1]
    reader.close()
    outbox.execute("UPDATE outbox SET kafka_value = 'short'")
    assert log_all(opened(log), log) == [1]
    assert log.messages[-1].data == b"short"
    assert remaining(outbox) == []


@pytest.mark.parametrize(("times", "fits"), [(4 * MIB - 10_000, True), (4 * MIB, False)])
def test_other_encodings_are_measured_as_they_are_sent(
    postgres: Database, opened: Callable[..., Any], times: int, fits: bool
) -> None:
    """A LATIN1 text takes twice its bytes in the log."""
    name = f"{postgres.name}_latin1"
    postgres.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    dsn = make_conninfo(postgres.dsn, dbname=name)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(outbox_sql())
        connection.execute(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)"
            " VALUES ('t', 'k', repeat('ü', %s))",
            [times],
        )
    reader = opened(dsn=dsn)
    batch = reader.poll(5)
    reader.close()
    assert len(list(split_for_append(batch.messages))) == 1
    (message,) = messages(batch)
    assert (message.headers == ()) is fits
    postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_large_row_that_goes_before_it_is_told_of(
    outbox: Database, opened: Callable[..., Any], claim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages and ids stay aligned, so no other row is purged in its place."""
    numbers = [insert(outbox), put(outbox, 9 * MIB), insert(outbox)]
    by_row = Outbox._read_by_row

    def deleted(self: Outbox, *found: Any) -> Any:
        outbox.execute("DELETE FROM outbox WHERE id = 2")
        return by_row(self, *found)

    monkeypatch.setattr(Outbox, "_read_by_row", deleted)
    reader = opened()
    batch = reader.poll(5)
    # With take the row is still in the snapshot.
    assert ids(batch) == (numbers if claim == "take" else [1, 3])
    if claim == "mark":
        reader.delivered(batch.position, [1])
        assert remaining(outbox) == [1]
    reader.commit(batch.position)
    assert remaining(outbox) == []
