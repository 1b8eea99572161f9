"""Directed schedules for the rules of the hand-over, each on a real server and deterministic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cdc_tools import MemoryLog, clean_slots, short, started
from engine_tools import until
from transporter_adaptors.postgres_cdc import handover, reader

from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.postgres import Database

pytestmark = pytest.mark.postgres


@pytest.fixture
def shop(postgres: Database) -> Iterator[Database]:
    """Yield a database with ten items, whose slots are dropped at the end."""
    postgres.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    postgres.execute("INSERT INTO items SELECT n, 'first' FROM generate_series(10, 100, 10) n")
    with clean_slots(postgres):
        yield postgres


def copied(log: MemoryLog) -> list[str]:
    """Return the keys of the rows that were copied, in the order of the log."""
    return [each.key.decode() for each in log.messages if each.phase == "copy" and each.key]


def begin_copy(database: Database, rows: int, **settings: Any) -> MemoryLog:
    """Return a log with the first *rows* rows, two a chunk, and no change yet."""
    log = MemoryLog(database, copy_rows=2, **settings)
    until(lambda: log.poll() and len(copied(log)) >= rows)
    assert len(copied(log)) == rows
    return log


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
    monkeypatch.setattr(reader, "LARGEST", 100)
    with shop.connect() as connection:
        connection.execute("SELECT pg_logical_emit_message(false, 'note', repeat('x', 200))")
        connection.execute("UPDATE items SET name = 'second' WHERE id = 30")
    # No further chunk: the stream has to bring both at once.
    monkeypatch.setattr(handover, "MAX_CHUNKS", 0)
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


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("ALTER TABLE words RENAME COLUMN id TO word", "is gone"),
        ("ALTER TABLE words ALTER COLUMN id TYPE char(9)", "has another type"),
    ],
    ids=["renamed", "retyped"],
)
def test_a_key_that_changes_in_the_middle_of_the_copy_stops_the_reader(
    shop: Database, words: MemoryLog, statement: str, problem: str
) -> None:
    """Chunks behind a boundary of another order would leave rows out. All copied again is right."""
    shop.execute(statement)
    with pytest.raises(
        EnvironmentFault, match=rf"the column id of public.words.*{problem}.*copy_run"
    ):
        until(lambda: words.poll() is None)
    words.kill()
    words.settings |= {"copy_run": 2, "copy_from_empty": True}
    words.drain(shop)
    words.kill()
    words.messages = [each for each in words.messages if each.namespace == "public.words"]
    assert [*last_rows(words).values()] == ["second"] * 10


def test_a_renamed_key_stops_the_reader(shop: Database) -> None:
    """Entries without a key would follow, which no sink can apply."""
    log = started(shop)
    shop.execute("ALTER TABLE items RENAME COLUMN id TO number")
    shop.execute("INSERT INTO items VALUES (110, 'second')")
    with pytest.raises(
        EnvironmentFault, match=r"column id of public.items.*another name.*copy_run"
    ):
        until(lambda: log.poll() is None)
    log.kill()
    log.settings |= {"copy_run": 2, "copy_from_empty": True}
    log.drain(shop)
    log.kill()
    rows = dict(shop.execute("SELECT number::text, name FROM items"))
    assert last_rows(log) == rows
