"""Directed schedules for the rules of the hand-over, each on a real server and deterministic."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from cdc_crashes import FORGETFUL, crash, hanging_commits
from cdc_tools import MemoryLog, clean_slots, short, started
from engine_tools import until
from services.postgres import fresh_database, served
from transporter_adaptors.postgres.session import translate_error
from transporter_adaptors.postgres_cdc import (
    chunk_reader,
    handover,
    large_values,
    pending,
    plan,
    reader,
    table_states,
)
from transporter_adaptors.postgres_cdc.chunk_reader import ChunkReader
from transporter_adaptors.postgres_cdc.position import Position

from transporter.errors import EnvironmentFault, SourceError, SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from services.postgres import Database, PostgresService

pytestmark = pytest.mark.postgres


@pytest.fixture
def shop(postgres: Database) -> Iterator[Database]:
    """Yield a database with ten items, whose slots are dropped at the end."""
    postgres.execute(ITEMS)
    with clean_slots(postgres):
        yield postgres


ITEMS = """
CREATE TABLE items (id int PRIMARY KEY, name text);
INSERT INTO items SELECT n, 'first' FROM generate_series(10, 100, 10) n;
"""


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresService]:
    """Run a server that a test may crash, and that loses much by it."""
    with served(**FORGETFUL) as server:
        yield server


@pytest.fixture
def crashing(own_server: PostgresService) -> Iterator[Database]:
    """Yield a database like ``shop`` on the server that may crash."""
    with fresh_database(own_server) as database:
        database.execute(ITEMS)
        with clean_slots(database):
            yield database


def copied(log: MemoryLog) -> list[str]:
    """Return the keys of the rows that were copied, in the order of the log."""
    return [each.key.decode() for each in log.messages if each.phase == "copy" and each.key]


def begin_copy(database: Database, rows: int, **settings: Any) -> MemoryLog:
    """Return a log with the first *rows* rows, two a chunk, and no change yet."""
    log = MemoryLog(database, copy_rows=2, **settings)
    until(lambda: log.poll() and len(copied(log)) >= rows)
    assert len(copied(log)) == rows
    return log


def history(log: MemoryLog, key: int) -> list[tuple[str, str | None]]:
    """Return phase and value of each entry of *key*; a deletion has no value."""
    found = [each for each in short(log.messages) if each[2] == str(key)]
    return [(phase, data and data["name"]) for _, phase, _, data in found]


def last_rows(log: MemoryLog) -> dict[str, str]:
    """Return the last value of each key in the log; a TRUNCATE empties it."""
    rows: dict[str, str] = {}
    for op, _, key, data in short(log.messages):
        if op == "command":
            rows.clear()
        elif op == "delete":
            rows.pop(key, None)
        elif key is not None:
            rows[key] = data["name"]
    return rows


def stored_rows(database: Database, table: str = "items") -> dict[str, str]:
    """Return the value of each key in the table."""
    return dict(database.execute(f"SELECT id::text, name FROM {table}"))


def test_the_first_chunk_waits_for_a_writer_from_before_the_publication(shop: Database) -> None:
    """Rule 1: his earlier changes are in no stream, though he commits behind the publication."""
    log = started(shop, tables=["public.*"], watch=1)
    with shop.connect(autocommit=False) as writer:
        shop.execute("CREATE TABLE words (id int PRIMARY KEY, name text)")
        shop.execute("INSERT INTO words VALUES (1, 'first')")
        writer.execute("INSERT INTO words VALUES (2, 'early')")
        published = "SELECT 1 FROM pg_publication_tables WHERE tablename = 'words'"
        until(lambda: log.poll() and shop.execute(published))
        for _ in range(10):
            log.poll()
        assert [each for each in log.messages if each.namespace == "public.words"] == []
        writer.execute("UPDATE words SET name = 'late' WHERE id = 1")
        writer.commit()
    log.drain(shop)
    log.kill()
    log.messages = [each for each in log.messages if each.namespace == "public.words"]
    assert history(log, 2) == [("copy", "early")]
    assert last_rows(log) == stored_rows(shop, "words")


def test_a_chunk_waits_for_a_commit_that_hangs(
    crashing: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 2: a commit that waits for a standby is streamed, and a chunk would not see it."""
    log = begin_copy(crashing, 4)
    updates = [f"UPDATE items SET name = 'second' WHERE id = {key}" for key in (90, 10)]
    writers = [threading.Thread(target=crashing.execute, args=(each,)) for each in updates]
    with hanging_commits(crashing):
        # Only the stream goes on until both have come.
        monkeypatch.setattr(handover, "MAX_CHUNKS", 0)
        writers[0].start()
        until(lambda: log.poll() and log.reader()._open_parts._handover.passed)
        # With an entry the position is logged, too.
        writers[1].start()
        until(lambda: log.poll() and len(history(log, 10)) == 2)
        monkeypatch.undo()
        for _ in range(10):
            log.poll()
        assert len(copied(log)) == 4
        log.kill()
        for _ in range(3):
            log.poll()
        assert len(copied(log)) == 4, "what was passed is forgotten by a kill"
    for writer in writers:
        writer.join()
    log.drain(crashing)
    log.kill()
    assert history(log, 90) == [("copy", "second")]
    assert last_rows(log) == stored_rows(crashing)


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_large_value_waits_for_a_commit_that_hangs(
    crashing: Database, monkeypatch: pytest.MonkeyPatch, is_taken: bool
) -> None:
    """A change of a key is streamed before a query finds its row, or finds one from before it."""
    monkeypatch.setattr(large_values, "_VISIBLE", 0.1)
    crashing.execute("ALTER TABLE items ALTER name SET STORAGE EXTERNAL")
    crashing.execute("UPDATE items SET name = repeat(id::text, 2000)")
    log = started(crashing)
    change = "DELETE FROM items WHERE id = 20; " if is_taken else ""
    change += "UPDATE items SET id = 20 WHERE id = 10" if is_taken else "UPDATE items SET id = 11"
    change += "" if is_taken else " WHERE id = 10"
    writer = threading.Thread(target=crashing.execute, args=(f"BEGIN; {change}; COMMIT",))
    with hanging_commits(crashing):
        writer.start()
        with pytest.raises(SourceUnavailable, match="is committed and not visible yet"):
            until(lambda: log.poll() and history(log, 20 if is_taken else 11)[1:])
        log.kill()
    writer.join()
    log.drain(crashing)
    log.kill()
    assert last_rows(log) == stored_rows(crashing)


def test_a_row_is_gone_once_the_server_cannot_bring_it_back(
    crashing: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query sees an asynchronous delete that a crash undoes. The row's new key is logged then."""
    monkeypatch.setattr(chunk_reader, "_FLUSH_PATIENCE", 1000.0)
    monkeypatch.setattr(chunk_reader, "_FLUSH_LIMIT", 0.5)
    crashing.execute("ALTER TABLE items ALTER name SET STORAGE EXTERNAL")
    crashing.execute("UPDATE items SET name = repeat(id::text, 2000)")
    log = started(crashing)
    crashing.execute("UPDATE items SET id = 11 WHERE id = 10")
    with crashing.connect(options="-c synchronous_commit=off") as writer:
        # The server writes its log at once after a pause, and then not for ten seconds.
        writer.execute("UPDATE items SET id = id WHERE id = 30")
        time.sleep(0.5)
        writer.execute("DELETE FROM items WHERE id = 11")
    with suppress(SourceUnavailable):
        until(lambda: log.poll() and (None in [value for _, value in history(log, 10)]))
    log.kill()
    crash(crashing)
    assert "11" in stored_rows(crashing), "the server has lost nothing"
    monkeypatch.undo()
    log.drain(crashing)
    log.kill()
    assert last_rows(log) == stored_rows(crashing)


@pytest.mark.exhaustive
def test_a_chunk_waits_until_the_server_cannot_lose_it(
    crashing: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 3: a crash takes a commit that a chunk has seen, and another one gets its number."""
    monkeypatch.setattr(chunk_reader, "_FLUSH_PATIENCE", 1000.0)
    log = begin_copy_flushed(crashing)
    before = copied(log)
    with monkeypatch.context() as patch:
        patch.setattr(chunk_reader, "_FLUSH_LIMIT", 0.0)
        log.reader()._open_parts._copier._drop_ahead()
    with crashing.connect(options="-c synchronous_commit=off") as writer:
        # The server writes its log at once after a pause, and then not for ten seconds.
        writer.execute("UPDATE items SET name = 'warm' WHERE id = 10")
        time.sleep(0.5)
        lost = number_of(writer, "UPDATE items SET name = 'lost' WHERE id = 50")
    waits, is_flushed = threading.Event(), ChunkReader._is_flushed

    def note_wait(reader: ChunkReader, end: int) -> bool:
        waits.set()
        return is_flushed(reader, end)

    monkeypatch.setattr(ChunkReader, "_is_flushed", note_wait)
    poll = threading.Thread(target=poll_chunk, args=(log,))
    poll.start()
    # A chunk that does not wait is in the log by then, however slow the host is.
    until(lambda: waits.is_set() or not poll.is_alive())
    poll.join(0.5)
    crash(crashing)
    poll.join()
    assert stored_rows(crashing)["50"] == "first", "the server has lost nothing"
    assert copied(log) == before
    log.kill()
    with crashing.connect() as writer:
        again = number_of(writer, "UPDATE items SET name = 'second' WHERE id = 50")
    assert again <= lost, "the number was not given out again"
    monkeypatch.undo()
    log.drain(crashing)
    log.kill()
    assert last_rows(log) == stored_rows(crashing)


def begin_copy_flushed(database: Database) -> MemoryLog:
    """Return a log with four rows, while a flush is forced after each chunk."""
    log = MemoryLog(database, copy_rows=2)
    while len(copied(log)) < 4:
        done = threading.Event()
        forced = threading.Thread(target=keep_flushing, args=(database, done))
        forced.start()
        log.poll()
        done.set()
        forced.join()
    return log


def keep_flushing(database: Database, done: threading.Event) -> None:
    """Make the server write its log, again and again."""
    with database.connect() as connection:
        while not done.wait(0.05):
            connection.execute("SELECT pg_logical_emit_message(true, 'flush', '')")


def number_of(connection: Any, statement: str) -> int:
    """Execute *statement* and return the number of its transaction."""
    with connection.transaction():
        connection.execute(statement)
        (number,) = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
    return int(number)


def poll_chunk(log: MemoryLog) -> None:
    """Poll for a chunk that is read now, before the stream has its turn.

    The server may crash meanwhile.
    """
    opened = log.reader()._open_parts
    opened._copier._drop_ahead()
    opened._is_streams_turn = False
    with suppress(SourceUnavailable):
        log.poll()


def test_a_chunk_has_what_it_saw_and_the_stream_the_rest(shop: Database) -> None:
    """Rule 4: seen by the chunk, not seen by it, and beyond the boundary."""
    log = begin_copy(shop, 4)
    with shop.connect(autocommit=False) as writer:
        writer.execute("UPDATE items SET name = 'open' WHERE id = 50")
        shop.execute("UPDATE items SET name = 'seen' WHERE id = 60")
        poll_chunk(log)
        assert copied(log)[4:] == ["50", "60"]
        writer.commit()
    shop.execute("UPDATE items SET name = 'beyond' WHERE id = 100")
    shop.execute("UPDATE items SET id = 95 WHERE id = 20")
    shop.execute("UPDATE items SET id = 15 WHERE id = 90")
    log.drain(shop)
    log.kill()
    assert history(log, 50) == [("copy", "first"), ("sync", "open")]
    assert history(log, 60) == [("copy", "seen")]
    assert history(log, 100) == [("copy", "beyond")]
    assert history(log, 20) == [("copy", "first"), ("sync", None)]
    assert history(log, 95) == [("copy", "first")]
    assert history(log, 15) == [("sync", "first")]
    assert history(log, 90) == []


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_chunk_read_ahead_counts_only_without_what_has_passed(
    shop: Database, monkeypatch: pytest.MonkeyPatch, *, is_forgotten: bool
) -> None:
    """Rule 2 where the next chunk is older than a change that the stream has dropped since."""
    log = begin_copy(shop, 4)
    opened = log.reader()._open_parts
    until(opened._copier._ahead.chunk.done)
    shop.execute("UPDATE items SET name = 'second' WHERE id = 50")
    monkeypatch.setattr(handover, "MAX_CHUNKS", 0)
    until(lambda: log.poll() and opened._handover.passed)
    if is_forgotten:
        # A snapshot of now has it, and that of the chunk has not.
        monkeypatch.setattr(reader, "_PASSED", 0)
        until(lambda: log.poll() and not opened._handover.passed)
    monkeypatch.undo()
    log.drain(shop)
    log.kill()
    assert history(log, 50) == [("copy", "second")]
    assert last_rows(log) == stored_rows(shop)


def test_a_copy_over_rows_that_are_logged_drops_no_change(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 4, second run: a change follows its chunk, and one beyond the boundary comes, too."""
    log = started(shop)
    log.kill()
    log.messages.clear()
    log.settings |= {"tables": [{"table": "items", "copy_run": 2}], "copy_rows": 2}
    until(lambda: log.poll() and len(copied(log)) >= 4)
    shop.execute("UPDATE items SET name = 'seen' WHERE id = 50")
    poll_chunk(log)
    assert copied(log)[4:] == ["50", "60"]
    shop.execute("DELETE FROM items WHERE id = 100")
    # Only the stream goes on until it has come to the deletion.
    monkeypatch.setattr(handover, "MAX_CHUNKS", 0)
    until(lambda: log.poll() and history(log, 100))
    monkeypatch.undo()
    log.drain(shop)
    log.kill()
    assert history(log, 50) == [("copy", "seen"), ("sync", "seen")]
    assert history(log, 100) == [("sync", None)]


def test_the_copy_waits_for_a_stream_that_is_behind(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 5: few chunks are in a position, and the copy goes on when the stream has come."""
    monkeypatch.setattr(handover, "MAX_CHUNKS", 2)
    log = MemoryLog(shop, copy_rows=1)
    most = 0
    while len(copied(log)) < 10 or log.reader()._open_parts._handover.copies:
        poll_chunk(log)
        most = max(most, *(len(copy.chunks) for copy in copies_of(log)), 0)
    log.kill()
    assert most == 2
    assert last_rows(log) == stored_rows(shop)


def copies_of(log: MemoryLog) -> list[handover.TableCopy]:
    """Return the copies in the position of *log*."""
    return [*Position.parse(log.position or "").copies]


def test_rows_that_a_chunk_has_seen_behind_a_truncate_are_copied_again(shop: Database) -> None:
    """Rule 7: the TRUNCATE comes behind the chunk that has seen it, and takes its rows away."""
    log = begin_copy(shop, 4)
    shop.execute("TRUNCATE items")
    shop.execute("INSERT INTO items VALUES (50, 'again'), (60, 'again')")
    poll_chunk(log)
    assert copied(log)[4:] == ["50", "60"]
    log.drain(shop)
    log.kill()
    assert last_rows(log) == stored_rows(shop) == {"50": "again", "60": "again"}


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_of_one_lsn_go_on_where_they_were_cut(shop: Database, rows: int) -> None:
    """COPY writes many rows at one place of the server's log. A kill repeats none of them."""
    log = started(shop, batch_rows=rows)
    begun = len(log.messages)
    with shop.connect() as connection, connection.transaction(), connection.cursor() as cursor:
        with cursor.copy("COPY items FROM STDIN") as rows_to_copy:
            for number in range(200, 220):
                rows_to_copy.write_row((number, "copied"))
        cursor.execute("UPDATE items SET name = 'second' WHERE id = 219")
    while len(log.messages) < begun + 21:
        log.kill()
        count = len(log.messages)
        until(lambda count=count: log.poll(0.1) and len(log.messages) > count)  # type: ignore[misc]
    log.drain(shop)
    log.kill()
    places = [(each.source_id or "").split("/")[1] for each in log.messages[begun:]]
    assert len({*places}) < 5, "the rows have places of their own"
    assert [each[2] for each in short(log.messages)][-21:] == [
        *map(str, range(200, 220)), "219"
    ]  # fmt: skip


@pytest.mark.exhaustive
def test_what_is_published_outlives_a_crash_of_a_server_that_commits_later(
    crashing: Database,
) -> None:
    """The log must not follow a table that the server may take out of the publication again.

    Changes in between would be in no stream, and no chunk would wait for them.
    """
    log = started(crashing, tables=["public.*"], watch=1)
    crashing.execute("CREATE TABLE words (id int PRIMARY KEY, name text)")
    log.kill()
    crashing.execute(f'ALTER DATABASE "{crashing.name}" SET synchronous_commit = off')
    crashing.execute("INSERT INTO items VALUES (1, 'warm')")
    time.sleep(0.5)
    log.poll()
    published = "SELECT count(*) FROM pg_publication_tables WHERE tablename = 'words'"
    assert crashing.execute(published) == [(1,)]
    crash(crashing)
    assert crashing.execute(published) == [(1,)]
    log.kill()
    log.settings["watch"] = 10
    log.drain(crashing)
    log.kill()
    assert last_rows(log) == stored_rows(crashing)


def test_a_truncate_during_a_copy_of_some_rows_loses_none_of_the_others(shop: Database) -> None:
    """Rows outside of ``copy_where`` come from the stream alone, also after a TRUNCATE."""
    items = [{"table": "items", "copy_where": "id < 1000"}]
    log = begin_copy(shop, 2, tables=items)
    shop.execute("TRUNCATE items")
    # The copy is at its beginning again, so every key is beyond its boundary.
    shop.execute("INSERT INTO items VALUES (5, 'near'), (2000, 'far')")
    log.drain(shop)
    log.kill()
    assert last_rows(log) == stored_rows(shop)


def test_what_is_left_of_a_batch_is_compared_with_the_bounds_of_its_time(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk that the stream passes while changes wait for the next frame still counts for them.

    A message outside of a transaction fills the frame, and moves the position by itself.
    """
    log = begin_copy(shop, 4, messages=[{"prefix": "note", "format": "raw"}])
    monkeypatch.setattr(pending, "LARGEST", 100)
    with shop.connect() as connection:
        connection.execute("SELECT pg_logical_emit_message(false, 'note', repeat('x', 200))")
        connection.execute("UPDATE items SET name = 'second' WHERE id = 30")
    # No further chunk: the stream has to bring both at once.
    monkeypatch.setattr(handover, "MAX_CHUNKS", 0)
    ((end,),) = shop.execute("SELECT pg_current_wal_lsn()")
    sent = f"""SELECT sent_lsn >= '{end}' FROM pg_stat_replication
        JOIN pg_replication_slots ON active_pid = pid WHERE database = current_database()"""
    until(lambda: shop.execute(sent) == [(True,)])
    until(lambda: log.poll(1.0) and any(each.phase == "sync" for each in log.messages))
    monkeypatch.undo()
    log.drain(shop)
    log.kill()
    log.messages = [each for each in log.messages if each.namespace == "public.items"]
    assert last_rows(log) == stored_rows(shop)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("char(9)", "'k' || n"), ("bit(8)", "n::bit(8)"), ("varbit(9)", "n::bit(8)")],
)
def test_keys_of_a_type_with_a_length_are_copied_once(
    postgres: Database, kind: str, value: str
) -> None:
    """The boundary is a whole key: ``character`` and ``bit`` without a length would cut it."""
    postgres.execute(f"CREATE TABLE items (id {kind} PRIMARY KEY, name text)")
    postgres.execute(f"INSERT INTO items SELECT {value}, 'first' FROM generate_series(1, 9) n")
    with clean_slots(postgres):
        log = begin_copy(postgres, 6)
        postgres.execute("UPDATE items SET name = 'second'")
        log.drain(postgres)
        log.kill()
    assert last_rows(log) == dict(postgres.execute("SELECT format('%s', id), name FROM items"))
    assert len({*copied(log)}) == len(copied(log))


@pytest.fixture
def words(shop: Database) -> MemoryLog:
    """Return the log of a copy of two tables that is in the middle of the second."""
    shop.execute("CREATE TABLE words (id text PRIMARY KEY, name text)")
    shop.execute("INSERT INTO words SELECT 'w' || n, 'first' FROM generate_series(1, 10) n")
    log = begin_copy(shop, 12, tables=["public.*"], watch=1)
    shop.execute("UPDATE words SET name = 'second'")
    return log


def test_a_table_that_is_dropped_in_the_middle_of_its_copy_stops_nobody(
    shop: Database, words: MemoryLog
) -> None:
    """Changes that come when their table is gone are followed, and so are the other tables."""
    shop.execute("DROP TABLE words")
    shop.execute("INSERT INTO items VALUES (110, 'second')")
    until(lambda: words.poll() and any(name == "table-removed" for name, _ in words.told))
    words.drain(shop)
    words.kill()
    words.messages = [each for each in words.messages if each.namespace == "public.items"]
    assert last_rows(words) == stored_rows(shop)


def test_a_key_that_changes_in_the_middle_of_the_copy_stops_the_reader(
    shop: Database, words: MemoryLog
) -> None:
    """Chunks behind a boundary of another order would leave rows out. All copied again is right."""
    shop.execute("ALTER TABLE words ALTER COLUMN id TYPE char(9)")
    with pytest.raises(
        EnvironmentFault, match=r"the column id of public.words.*has another type.*copy_run"
    ):
        until(lambda: words.poll() is None)
    words.kill()
    words.settings |= {"copy_run": 2, "copy_from_empty": True}
    words.drain(shop)
    words.kill()
    words.messages = [each for each in words.messages if each.namespace == "public.words"]
    assert [*last_rows(words).values()] == ["second"] * 10


def test_a_key_that_is_renamed_in_the_middle_of_the_copy_goes_on(
    shop: Database, words: MemoryLog
) -> None:
    """The order of its rows is the same under another name."""
    shop.execute("ALTER TABLE words RENAME COLUMN id TO word")
    words.drain(shop)
    words.kill()
    words.messages = [each for each in words.messages if each.namespace == "public.words"]
    assert last_rows(words) == dict(shop.execute("SELECT word, name FROM words"))


def test_a_renamed_key_goes_on(shop: Database) -> None:
    """Its column is known by its place, and entries have their keys."""
    log = started(shop)
    shop.execute("ALTER TABLE items RENAME COLUMN id TO number")
    shop.execute("INSERT INTO items VALUES (110, 'second')")
    log.drain(shop)
    log.kill()
    rows = dict(shop.execute("SELECT number::text, name FROM items"))
    assert last_rows(log) == rows


@pytest.mark.parametrize(
    ("module", "step"),
    [
        (plan, "find_tables"),
        (reader, "plan_tables"),
        (reader, "ensure_published"),
        (table_states, "_first_transaction"),
    ],
)
@pytest.mark.parametrize("is_new", [False, True])
def test_a_table_that_is_created_again_while_the_reader_opens_stops_nobody(
    shop: Database, monkeypatch: pytest.MonkeyPatch, module: ModuleType, step: str, *, is_new: bool
) -> None:
    """Steps of the opening look one after the other, and what they find may be gone by the next."""
    create = "CREATE TABLE words (id text PRIMARY KEY, name text)"
    if not is_new:
        shop.execute(create)
    log = started(shop, tables=["public.*"])
    log.kill()
    if is_new:
        shop.execute(create)
    log.settings["tables"] = ["public.*", {"table": "words", "copy_run": 2}]
    real, again = getattr(module, step), [f"DROP TABLE words; {create}"]

    def look(*arguments: Any) -> Any:
        found = real(*arguments)
        while again:
            shop.execute(again.pop())
        return found

    monkeypatch.setattr(module, step, look)
    log.poll()
    shop.execute("INSERT INTO words VALUES ('w', 'second')")
    log.settings["watch"] = 1
    log.kill()
    # The new table's turn comes behind the last change of the old one.
    until(lambda: log.poll(0.1) and any(each.key == b"w" for each in log.messages))
    log.drain(shop)
    log.kill()
    log.messages = [each for each in log.messages if each.namespace == "public.words"]
    assert last_rows(log) == {"w": "second"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("could not open relation with OID 16422", SourceUnavailable),
        ("cache lookup failed for relation 16422", SourceUnavailable),
        ("unexpected chunk number 1", SourceError),
    ],
)
def test_a_query_that_a_drop_has_overtaken_is_tried_again(text: str, kind: type[Exception]) -> None:
    """The server reports it as an error of its own, and another such error stays one."""
    assert type(translate_error(psycopg.errors.InternalError_(text), "cannot look")) is kind
