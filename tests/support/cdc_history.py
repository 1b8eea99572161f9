"""The strict history of ``postgres-cdc``: hostile writers, and a judge of each key's history.

A trigger writes each change down in its own transaction, so that a crash of the server leaves the
real history and the tables as they belong together.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID

import psycopg
from cdc_crashes import hanging_commits
from cdc_tools import TRUNCATED, Event, value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.postgres import Database

    from transporter.message import Message

NUMBERS: Final = 200
"""Keys of each table."""
PATIENCE: Final = 120.0
_HISTORY: Final = (
    "CREATE TABLE public.history (n bigserial PRIMARY KEY, tab text, k text, op text, v text)"
)
_TRACE: Final = """
CREATE FUNCTION public.trace_{name}() RETURNS trigger LANGUAGE plpgsql
SET TimeZone = 'UTC' SET DateStyle = 'ISO' AS $$ BEGIN
  IF TG_OP = 'TRUNCATE' THEN
    INSERT INTO public.history (tab, op) VALUES ('{name}', 'truncate');
  ELSIF TG_OP = 'UPDATE' AND {old} = {new} THEN
    INSERT INTO public.history (tab, k, op, v) VALUES ('{name}', {new}, 'update', NEW.v);
  ELSE
    IF TG_OP <> 'INSERT' THEN
      INSERT INTO public.history (tab, k, op) VALUES ('{name}', {old}, 'delete');
    END IF;
    IF TG_OP <> 'DELETE' THEN
      INSERT INTO public.history (tab, k, op, v) VALUES ('{name}', {new}, 'insert', NEW.v);
    END IF;
  END IF;
  RETURN NULL;
END $$
"""
_TABLE: Final = """
CREATE TABLE public.{name} ({columns}, v text, PRIMARY KEY ({key})){suffix};
{partitions}
CREATE TRIGGER trace AFTER INSERT OR UPDATE OR DELETE ON public.{name}
 FOR EACH ROW EXECUTE FUNCTION public.trace_{name}();
CREATE TRIGGER trace_all AFTER TRUNCATE ON public.{name}
 FOR EACH STATEMENT EXECUTE FUNCTION public.trace_{name}();
"""


@dataclass(frozen=True)
class KeyedTable:
    """A table with a history, whose keys are made of numbers."""

    name: str
    columns: str
    make: Callable[[int], tuple[object, ...]]
    key: tuple[str, ...] = ("k",)
    partitions: int = 0

    @property
    def function(self) -> str:
        """SQL of the trigger's function."""
        return _TRACE.format(name=self.name, old=self.key_text("OLD"), new=self.key_text("NEW"))

    @property
    def table(self) -> str:
        """SQL of the table."""
        parts = (
            f"CREATE TABLE public.{self.name}_{part} PARTITION OF public.{self.name}"
            f" FOR VALUES WITH (MODULUS {self.partitions}, REMAINDER {part});"
            for part in range(self.partitions)
        )
        return _TABLE.format(
            name=self.name,
            columns=self.columns,
            key=", ".join(self.key),
            suffix=f" PARTITION BY HASH ({self.key[0]})" if self.partitions else "",
            partitions="".join(parts),
        )

    def key_text(self, row: str) -> str:
        """Return the SQL of the key's text, as in entries, of *row*."""
        if len(self.key) == 1:
            return f"format('%s', {row}.{self.key[0]})"
        return f"json_build_array({', '.join(f'{row}.{name}' for name in self.key)})::text"

    @property
    def condition(self) -> str:
        """SQL of the condition for one key."""
        return " AND ".join(f"{name} = %s" for name in self.key)


_EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
_LETTERS: Final = ("a", "Ä", "b", "B", "z", "é", "ß", "_")
TABLES: Final = (
    KeyedTable("ints", "k int", lambda number: (number - NUMBERS // 2,)),
    KeyedTable("bigs", "k bigint", lambda number: (number * 10**15,)),
    KeyedTable("ids", "k uuid", lambda number: (UUID(int=number * 7919**9 % 2**128),)),
    KeyedTable(
        "words",
        "k text COLLATE public.ours",
        lambda number: (f"{_LETTERS[number % 8]}{number}",),
    ),
    KeyedTable("codes", "k char(9)", lambda number: (f"c{number}".ljust(9),)),
    KeyedTable("sums", "k numeric", lambda number: (f"{number - 50}.{number % 3}",)),
    KeyedTable("days", "k date", lambda number: (date(1999, 12, 1) + timedelta(number),)),
    KeyedTable("times", "k timestamptz", lambda number: (_EPOCH + timedelta(hours=number),)),
    KeyedTable(
        "pairs", "k int, l text", lambda number: (number // 9, f"l{number % 9}"), ("k", "l")
    ),
    KeyedTable("parts", "k int", lambda number: (number,), partitions=3),
)


FEW: Final = tuple(each for each in TABLES if each.name in {"ints", "bigs", "parts"})
ACTS: Final = ("column", "column", "column", "identity", "truncate", "create", "hang", "crash")
RESTLESS: Final = ("identity", "hang", *["truncate", "crash"] * 2, *["create"] * 3)
"""What happens to tables and server, in shares: mostly columns, or mostly whole tables."""


def create_tables(database: Database, tables: Sequence[KeyedTable] = TABLES) -> None:
    """Create *tables* with rows in them, and their history."""
    database.execute(_HISTORY)
    database.execute(f"CREATE COLLATION public.ours FROM {_collation(database)}")
    for table in tables:
        database.execute(table.function)
        database.execute(table.table)
        places = ", ".join(["%s"] * (len(table.key) + 1))
        with database.connect() as connection, connection.transaction():
            for number in range(0, NUMBERS, 2):
                insert = f"INSERT INTO public.{table.name} VALUES ({places})"
                connection.execute(insert, [*table.make(number), f"first {number}"])  # type: ignore[call-overload]


def _collation(database: Database) -> str:
    """Return a collation with an order other than that of bytes, if the server has one.

    Some builds are without ICU.
    """
    for name in ("unicode", "de_DE.utf8", "en_US.utf8"):
        with suppress(psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedObject):
            database.execute(f"SELECT 'a' < 'b' COLLATE \"{name}\"")
            return f'"{name}"'
    return '"C"'


EXPECTED: Final = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.QueryCanceled,
    psycopg.errors.LockNotAvailable,
    # A table that is created again goes away under a statement that waits for it.
    psycopg.errors.UndefinedTable,
    psycopg.errors.InternalError_,
    psycopg.errors.FeatureNotSupported,
)


class _Undone(Exception):
    """A rollback."""


class Crowd:
    """Writers, half of which commit asynchronously, and one that changes tables and the server.

    They go on after a crash of the server.
    """

    def __init__(
        self,
        database: Database,
        seed: int,
        crashes: Sequence[Callable[[Database], None]],
        tables: Sequence[KeyedTable] = TABLES,
        acts: Sequence[str] = ACTS,
    ) -> None:
        """Change *tables*, let one of *acts* happen now and then, and one of *crashes* with it."""
        self._database, self._tables, self._seed = database, tables, seed
        self._crashes, self._acts = crashes, acts
        self._stop, self.failures = threading.Event(), list[BaseException]()
        self.acts: dict[str, int] = defaultdict(int)
        kinds = [*[self._write] * 4, self._meddle]
        self._threads = [
            threading.Thread(target=self._go_on, args=(kind, number))
            for number, kind in enumerate(kinds)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        assert self.failures == []
        assert not any(thread.is_alive() for thread in self._threads)

    def _go_on(self, act: Callable[[int, random.Random], None], number: int) -> None:
        rng = random.Random(f"{self._seed}/{number}")
        while not self._stop.is_set():
            try:
                act(number, rng)
            except psycopg.OperationalError:
                time.sleep(0.05)  # The server recovers.
            except BaseException as error:  # noqa: BLE001 - reported by the test
                self.failures.append(error)
                return

    def _write(self, number: int, rng: random.Random) -> None:
        later = "off" if number % 2 else "on"
        options = f"-c synchronous_commit={later} -c lock_timeout=1s"
        with self._database.connect(autocommit=False, options=options) as connection:
            while not self._stop.is_set():
                with suppress(*EXPECTED, _Undone), connection.transaction():
                    for _ in range(rng.choice((1, 1, 2, 5, 20))):
                        with suppress(_Undone), connection.transaction():
                            self.change(connection, rng)
                            _undo(rng)
                    _undo(rng)
                time.sleep(rng.random() * 0.01)

    def change(self, connection: psycopg.Connection[Any], rng: random.Random) -> None:
        """Change one row of one table."""
        table = rng.choice(self._tables)
        key, other = table.make(rng.randrange(NUMBERS)), table.make(rng.randrange(NUMBERS))
        value = f"{rng.getrandbits(60):x}"
        names, places = ", ".join(table.key), ", ".join(["%s"] * len(table.key))
        match rng.randrange(6):
            case 0 | 1:
                query = (
                    f"INSERT INTO public.{table.name} ({names}, v) VALUES ({places}, %s)"
                    f" ON CONFLICT ({names}) DO UPDATE SET v = EXCLUDED.v"
                )
                values = [*key, value]
            case 2 | 3:
                query = f"UPDATE public.{table.name} SET v = %s WHERE {table.condition}"
                values = [value, *key]
            case 4:
                query = f"DELETE FROM public.{table.name} WHERE {table.condition}"
                values = [*key]
            case _:
                moved = f"({names}, v) = ROW({places}, %s)"
                query = f"UPDATE public.{table.name} SET {moved} WHERE {table.condition}"
                values = [*other, value, *key]
        connection.execute(query, values)  # type: ignore[call-overload]

    def _meddle(self, _: int, rng: random.Random) -> None:
        """Do what other clients do seldom, one thing at a time."""
        table, act = rng.choice(self._tables), rng.choice(self._acts)
        if act == "crash" and self._crashes:
            rng.choice(self._crashes)(self._database)
        elif act == "hang":
            with hanging_commits(self._database):
                self._stop.wait(rng.uniform(0.05, 0.5))
        else:
            with (
                suppress(*EXPECTED),
                self._database.connect(options="-c lock_timeout=1s") as connection,
                connection.transaction(),
            ):
                connection.execute(_statement_of(act, table, rng))  # type: ignore[arg-type]
        self.acts[act] += 1
        self._stop.wait(rng.uniform(0.1, 0.6))


def _undo(rng: random.Random) -> None:
    if rng.random() < 0.1:
        raise _Undone


def _statement_of(act: str, table: KeyedTable, rng: random.Random) -> str:
    name = f"public.{table.name}"
    match act:
        case "column" if rng.random() < 0.5:
            return f"ALTER TABLE {name} ADD COLUMN IF NOT EXISTS extra int DEFAULT 7"
        case "column":
            return f"ALTER TABLE {name} DROP COLUMN IF EXISTS extra"
        case "identity":
            return f"ALTER TABLE {name} REPLICA IDENTITY {rng.choice(('FULL', 'DEFAULT'))}"
        case "truncate":
            return f"TRUNCATE {name}"
        case _:
            gone = f"INSERT INTO public.history (tab, op) VALUES ('{table.name}', 'truncate')"
            return f"DROP TABLE {name}; {gone}; {table.table}"


@dataclass
class Histories:
    """The history of each key of each table, and tables of which only the ends are exact."""

    events: dict[tuple[str, str], list[Event]]
    loose: set[str]


def real_histories(database: Database) -> dict[tuple[str, str], list[Event]]:
    """Return the history of each key by the triggers."""
    rows = database.execute("SELECT tab, k, op, v FROM public.history ORDER BY n")
    keys = {(table, key) for table, key, _, _ in rows if key is not None}
    found: dict[tuple[str, str], list[Event]] = {key: [] for key in keys}
    for table, key, op, value in rows:
        for each in [(table, key)] if key is not None else [key for key in keys if key[0] == table]:
            found[each].append((op, value))
    return found


def read_histories(messages: Sequence[Message]) -> Histories:
    """Return the history of each key in the log, from the last entry on that empties its table.

    A copy over rows that are in the log may take a row back for a moment.
    """
    keys = {(_table_of(each), each.key.decode()) for each in messages if each.key is not None}
    found, loose = Histories({key: [] for key in keys}, set()), dict[str, str]()
    for message in messages:
        table, source = _table_of(message), message.source_id or ""
        of_table = [key for key in keys if key[0] == table]
        if message.op == "command":
            is_ours = source.startswith("copy/")
            for key in of_table:
                found.events[key] = [] if is_ours else [*found.events[key], TRUNCATED]
            if is_ours:
                found.loose.discard(table)
                loose[table] = source.rpartition("/")[0]
            continue
        # The end of a copy has its run, too, also that of an empty table.
        if message.phase in {"copy", "complete"}:
            run = "/".join(source.split("/")[:3])
            # One that was to be repeated before it had begun drops no change, either.
            if loose.setdefault(table, run if run.endswith("/1") else "") != run:
                loose[table] = run
                found.loose.add(table)
        if message.key is not None:
            op = "copy" if message.phase == "copy" else message.op
            found.events[table, message.key.decode()].append((op, value_of(message)))
    return found


def _table_of(message: Message) -> str:
    return message.namespace.partition(".")[2]


def last_values(events: dict[tuple[str, str], list[Event]]) -> dict[tuple[str, str], str]:
    """Return the value that each key has at last, without those that have none."""
    return {key: each[-1][1] for key, each in events.items() if each and each[-1][1] is not None}


def stored_values(
    database: Database, tables: Sequence[KeyedTable] = TABLES
) -> dict[tuple[str, str], str]:
    """Return the value of each key in the tables."""
    found = {}
    with database.connect(options="-c TimeZone=UTC -c DateStyle=ISO") as connection:
        for table in tables:
            query = f"SELECT {table.key_text('t')}, v FROM public.{table.name} t"
            for key, value in connection.execute(query).fetchall():  # type: ignore[arg-type]
                found[table.name, key] = value
    return found
