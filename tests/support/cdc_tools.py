"""What tests of ``postgres-cdc`` share: a log in memory, writers, and the judge of a history."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import defaultdict
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Self

import psycopg
import pytest
from transporter_adaptors.postgres_cdc.reader import CdcReader

from transporter.adaptor import state_name
from transporter.errors import SourceUnavailable, TransporterError
from transporter.testing import FixedResume
from transporter.testing.contracts import messages_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from services.postgres import Database

    from transporter.adaptor import Batch
    from transporter.message import Message

LOG_ID: Final = "abcdef0123456789"
PATIENCE: Final = 180.0

TRACED: Final = """
CREATE TABLE public.history (n bigserial PRIMARY KEY, tab text, k text, op text, v text);
CREATE FUNCTION public.trace() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF TG_OP = 'UPDATE' AND OLD.k = NEW.k THEN
    INSERT INTO public.history (tab, k, op, v) VALUES (TG_TABLE_NAME, NEW.k, 'update', NEW.v);
  ELSE
    IF TG_OP <> 'INSERT' THEN
      INSERT INTO public.history (tab, k, op) VALUES (TG_TABLE_NAME, OLD.k, 'delete');
    END IF;
    IF TG_OP <> 'DELETE' THEN
      INSERT INTO public.history (tab, k, op, v) VALUES (TG_TABLE_NAME, NEW.k, 'insert', NEW.v);
    END IF;
  END IF;
  RETURN NULL;
END $$;
"""


def traced_table(name: str, key: str) -> str:
    """Return SQL for a table with a key of this type whose history a trigger writes down.

    The lock of a row, or of its key in the index, gives the changes of a key an order.
    """
    return (
        f"CREATE TABLE public.{name} (k {key} PRIMARY KEY, v text);"
        f"CREATE TRIGGER trace AFTER INSERT OR UPDATE OR DELETE ON public.{name}"
        " FOR EACH ROW EXECUTE FUNCTION public.trace();"
    )


TABLES: Final = {"numbers": "int", "words": "text"}
KEYS: Final[dict[str, Callable[[int], str]]] = {
    "numbers": str,
    "words": lambda number: f"{'aÄbBzé'[number % 6]}{number}",
}


def prepare_traced(database: Database) -> None:
    """Create tables with a history, and rows in them."""
    database.execute(TRACED)
    for name, key in TABLES.items():
        database.execute(traced_table(name, key))
        made = KEYS[name]
        for number in range(0, 400, 2):
            insert = f"INSERT INTO public.{name} VALUES (%s, %s)"
            database.execute(insert, [made(number), f"first {number}"])


class MemoryLog:
    """A log that keeps batches in memory, and readers that are killed between any two calls."""

    def __init__(self, database: Database, **settings: Any) -> None:
        """Read *database* with these settings of the reader."""
        self.settings = {"dsn": database.dsn, "tables": ["public.*", "!public.history"], **settings}
        self.position: str | None = None
        self.states: dict[str, str] = {}
        self.messages: list[Message] = []
        self.told: list[tuple[str, dict[str, object]]] = []
        self.kills = 0
        self._reader: CdcReader | None = None

    def reader(self) -> CdcReader:
        """Return the open reader, opened anew after a kill."""
        if self._reader is None:
            reader = CdcReader(CdcReader.Config.model_validate(self.settings))
            resume = FixedResume(self.position, LOG_ID)
            resume.states, resume.told = dict(self.states), self.told
            self._reader = open_patiently(reader, resume)
        return self._reader

    def poll(self, timeout: float = 0.05) -> Batch:
        """Poll once and log the batch, as the engine does."""
        self.reader().keep_alive()
        batch = self.reader().poll(timeout)
        self.append(batch)
        if batch.position is not None:
            self.reader().commit(batch.position)
        return batch

    def append(self, batch: Batch) -> None:
        """Log *batch*."""
        if batch.state is not None:
            self.states[state_name(batch.state)] = batch.state
        self.messages += messages_of(batch.messages)
        self.position = batch.position or self.position

    @property
    def position_fields(self) -> dict[str, Any]:
        """The fields of the position, none before the first."""
        fields: dict[str, Any] = json.loads(self.position or "{}")
        return fields

    def change_position(self, **fields: str) -> None:
        """Let the logged position have these *fields*."""
        self.position = json.dumps({**self.position_fields, **fields})

    def kill(self) -> None:
        """End the reader. What it has not returned is gone."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
            self.kills += 1

    def drain(self, database: Database) -> None:
        """Poll until everything that is committed by now is logged, and every table is in sync."""
        # Asynchronous commits may not be written yet.
        (end,) = database.execute("SELECT pg_current_wal_insert_lsn()::text")[0]
        ends = time.monotonic() + PATIENCE
        # An empty transaction leaves nothing to wait for: one with a change does.
        database.execute("SELECT pg_logical_emit_message(true, 'end', '')")
        while time.monotonic() < ends:
            self.poll()
            opened = self.reader()._open_parts
            at, behind = opened._position.at, opened._handover.copies
            done = database.execute("SELECT %s::pg_lsn <= %s::pg_lsn", [end, f"0/{at:X}"])
            if done == [(True,)] and not behind and not opened._pending:
                return
        raise AssertionError(f"the reader is not at {end}: {at:X}, {self.position}, {behind}")


def started(database: Database, **settings: Any) -> MemoryLog:
    """Return the log of a reader that has copied everything."""
    log = MemoryLog(database, **settings)
    log.drain(database)
    return log


def short(messages: list[Message]) -> list[tuple[Any, ...]]:
    """Return op, phase, key and data of *messages*, without those that only carry a position."""
    return [
        (each.op, each.phase, each.key and each.key.decode(), each.data and json.loads(each.data))
        for each in messages
        if not (each.op == "noop" and each.data is None)
    ]


def version(database: Database) -> int:
    """Return the major version of the server."""
    return int(database.execute("SHOW server_version_num")[0][0]) // 10000


def need_version(database: Database, least: int, subject: str) -> None:
    """Skip the test on servers that are older than version *least*, and lack the *subject*."""
    if version(database) < least:
        pytest.skip(f"{subject} need PostgreSQL {least}")


def broken(database: Database, log: MemoryLog) -> str:
    """Return the error of a reader that goes on with *log*."""
    with pytest.raises(TransporterError) as found:
        log.reader()
    assert not isinstance(found.value, SourceUnavailable)
    return str(found.value)


def open_patiently(reader: CdcReader, resume: FixedResume) -> CdcReader:
    """Open *reader*, again while the session of the last one still has the slot."""
    ends = time.monotonic() + PATIENCE
    while True:
        try:
            reader.open(resume)
        except SourceUnavailable:
            reader.close()
            if time.monotonic() > ends:
                raise
            time.sleep(0.05)
        else:
            return reader


@contextmanager
def locked(database: Database, table: str, mode: str = "ACCESS EXCLUSIVE") -> Iterator[None]:
    """Hold *table*, as a migration does that lasts."""
    with database.connect() as migration, migration.transaction():
        migration.execute(f"LOCK TABLE {table} IN {mode} MODE")
        yield


@contextmanager
def clean_slots(database: Database) -> Iterator[None]:
    """Drop the slots of *database* at the end, which would keep it from being dropped."""
    try:
        yield
    finally:
        mine = "FROM pg_replication_slots WHERE database = current_database()"
        ends = time.monotonic() + PATIENCE
        while time.monotonic() < ends and database.execute(f"SELECT 1 {mine}"):
            database.execute(f"SELECT pg_terminate_backend(active_pid) {mine} AND active")
            with suppress(psycopg.errors.ObjectInUse):
                database.execute(f"SELECT pg_drop_replication_slot(slot_name) {mine}")
            time.sleep(0.02)


class Writers:
    """Threads that change rows of tables at random, with savepoints, rollbacks and key changes."""

    def __init__(
        self, database: Database, tables: dict[str, Callable[[int], str]], seed: int, count: int = 4
    ) -> None:
        """Change *tables*, whose keys are made of numbers, by *count* threads from *seed*."""
        self._database, self._tables, self._seed = database, tables, seed
        self._stop, self._failures = threading.Event(), list[BaseException]()
        self._threads = [
            threading.Thread(target=self._guarded, args=(number,)) for number in range(count)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        assert self._failures == []
        assert not any(thread.is_alive() for thread in self._threads)

    def _guarded(self, number: int) -> None:
        try:
            self._write(number)
        except BaseException as error:  # noqa: BLE001 - reported by the test
            self._failures.append(error)

    def _write(self, number: int) -> None:
        rng, count = random.Random(f"{self._seed}/{number}"), 0
        with self._database.connect(autocommit=False) as connection:
            while not self._stop.is_set():
                with (
                    suppress(
                        psycopg.errors.UniqueViolation,
                        psycopg.errors.DeadlockDetected,
                        psycopg.errors.QueryCanceled,
                        _Undone,
                    ),
                    connection.transaction(),
                ):
                    connection.execute("SET LOCAL lock_timeout = '1s'")
                    for _ in range(rng.choice((1, 1, 2, 5))):
                        count += 1
                        with suppress(_Undone), connection.transaction():
                            self._change(connection, rng, f"{number}.{count}")
                            if rng.random() < 0.1:
                                raise _Undone
                    if rng.random() < 0.1:
                        raise _Undone
                time.sleep(rng.random() * 0.004)

    def _change(self, connection: psycopg.Connection[Any], rng: random.Random, value: str) -> None:
        name = rng.choice(list(self._tables))
        made = self._tables[name]
        key, other = made(rng.randrange(400)), made(rng.randrange(400))
        with suppress(psycopg.errors.LockNotAvailable), connection.transaction():
            match rng.randrange(6):
                case 0 | 1:
                    connection.execute(
                        f"INSERT INTO public.{name} VALUES (%s, %s)"  # type: ignore[call-overload]
                        " ON CONFLICT (k) DO UPDATE SET v = EXCLUDED.v",
                        [key, value],
                    )
                case 2 | 3:
                    update = f"UPDATE public.{name} SET v = %s WHERE k = %s"
                    connection.execute(update, [value, key])  # type: ignore[call-overload]
                case 4:
                    connection.execute(f"DELETE FROM public.{name} WHERE k = %s", [key])  # type: ignore[call-overload]
                case _:
                    update = f"UPDATE public.{name} SET k = %s, v = %s WHERE k = %s"
                    connection.execute(update, [other, value, key])  # type: ignore[call-overload]


class _Undone(Exception):
    """A rollback."""


Event = tuple[str, str | None]


def histories(database: Database) -> dict[tuple[str, str], list[Event]]:
    """Return the whole history of each key by the trigger: pairs of op and value, by table."""
    found: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for table, key, op, value in database.execute("SELECT tab, k, op, v FROM history ORDER BY n"):
        found[table, key].append((op, value))
    return found


def logged_histories(messages: list[Message]) -> dict[tuple[str, str], list[Event]]:
    """Return the history of each key in the log; a copied row has the op ``copy``."""
    found: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for message in messages:
        if message.op == "noop":
            continue
        assert message.key is not None
        table = message.namespace.partition(".")[2]
        op = "copy" if message.phase == "copy" else message.op
        value = value_of(message)
        found[table, message.key.decode()].append((op, value))
    return found


def value_of(message: Message) -> str | None:
    """Return the value in the row of *message*, if it has one."""
    return None if message.data is None else str(json.loads(message.data)["v"])


def wrong_keys(
    real: dict[tuple[str, str], list[Event]], logged: dict[tuple[str, str], list[Event]]
) -> dict[tuple[str, str], tuple[list[Event], list[Event]]]:
    """Return the keys whose history in the log is not the end of their real one.

    A copied row stands for everything up to it. A TRUNCATE is in the history of every key, and the
    copy may begin again behind it.
    """
    return {
        key: (real.get(key, []), logged.get(key, []))
        for key in {*real, *logged}
        if not _is_end_of(real.get(key, []), logged.get(key, []))
    }


TRUNCATED: Final[Event] = ("truncate", None)


def _is_end_of(real: list[Event], logged: list[Event]) -> bool:
    theirs, ours = _split_at_truncates(real), _split_at_truncates(logged)
    if len(ours) > len(theirs):
        return False
    theirs = theirs[len(theirs) - len(ours) :]
    return _is_end_of_part(theirs[-1], ours[-1]) and all(
        not own or _is_end_of_part(part, own) or _is_ahead(own, theirs[place:])
        for place, (part, own) in enumerate(zip(theirs[:-1], ours[:-1], strict=True), 1)
    )


def _is_ahead(logged: list[Event], later: list[list[Event]]) -> bool:
    """Return whether a chunk had seen the TRUNCATE that the stream brings behind it.

    A row to which the copy had not come is not in the log then.
    """
    values = {value for part in later for _, value in part}
    return len(logged) == 1 and logged[0][0] == "copy" and logged[0][1] in values


def _split_at_truncates(events: list[Event]) -> list[list[Event]]:
    parts: list[list[Event]] = [[]]
    for event in events:
        if event == TRUNCATED:
            parts.append([])
        else:
            parts[-1].append(event)
    return parts


def _is_end_of_part(real: list[Event], logged: list[Event]) -> bool:
    if logged and logged[0][0] == "copy":
        places = [at for at, (_, value) in enumerate(real) if value == logged[0][1]]
        return any(real[at + 1 :] == logged[1:] for at in places)
    begin = len(real) - len(logged)
    if begin < 0 or real[begin:] != logged:
        return False
    # Before that the key had no row, so the copy had nothing to read.
    return begin == 0 or real[begin - 1][0] == "delete"
