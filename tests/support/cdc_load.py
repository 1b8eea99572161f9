"""A load like that of pgbench on large tables whose columns change, and the judge of its log.

Each row has a version ``v`` that begins at 1 and grows by 1 with each change, and no key comes back
after its end. So the log is exact if versions are without gaps behind a copied row.
"""

from __future__ import annotations

import random
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson
import psycopg
from cdc_tools import Writers

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from services.postgres import Database

TABLES: Final = {"accounts": "id", "orders": "id", "customers": "code"}
_CREATE: Final = """
CREATE TABLE accounts (id bigint PRIMARY KEY, branch int, balance numeric(10,2), note varchar(20),
                       v int NOT NULL);
CREATE TABLE orders (id bigint PRIMARY KEY, state text, total int, v int NOT NULL);
CREATE TABLE customers (code text PRIMARY KEY, name varchar(20), body text, v int NOT NULL);
ALTER TABLE customers ALTER body SET STORAGE EXTERNAL;
CREATE SEQUENCE order_ids;
"""
_FILL: Final = """
INSERT INTO accounts SELECT n, n % 100, n, 'note ' || n % 1000, 1 FROM generate_series(1, {most}) n;
INSERT INTO orders SELECT nextval('order_ids'), 'new', n, 1 FROM generate_series(1, {some}) n;
INSERT INTO customers SELECT 'c' || n, 'name ' || n, repeat(md5(n::text),
  CASE WHEN n % 50 = 0 THEN 100 ELSE 1 END), 1 FROM generate_series(1, {few}) n;
"""
_EXTRA: Final = re.compile(r"extra_(\d+)$")
"""Columns that are added: their default is the number in their name."""
_EXTRAS: Final = (
    "SELECT attname::text FROM pg_attribute WHERE attrelid = %s::regclass AND NOT attisdropped"
    " AND attname LIKE 'extra%%' ORDER BY attnum"
)
_MEANWHILE: Final = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.FeatureNotSupported,
)


def fill(database: Database, rows: int) -> None:
    """Create the tables, with *rows* rows together."""
    database.execute(_CREATE)
    most, some = rows * 6 // 10, rows * 3 // 10
    database.execute(_FILL.format(most=most, some=some, few=rows - most - some))


class Load(Writers):
    """Threads that change rows as a bank does, and one that changes columns.

    They go on after a crash of the server. ``changes`` counts what was done to columns.
    """

    def __init__(self, database: Database, rows: int, count: int = 3, rate: float = 120.0) -> None:
        """Change a database with *rows* rows, by *count* threads beside that for columns.

        *rate* is the number of transactions a second that they come to at most, together.
        """
        super().__init__(database, {}, 1, count + 1)
        self._rows, self._pause = rows, count / rate
        self.transactions = 0
        self.changes = {"add": 0, "drop": 0, "widen": 0}

    def _write(self, number: int) -> None:
        rng = random.Random(number)
        while not self._stop.is_set():
            with (
                suppress(psycopg.OperationalError),
                self._database.connect(options="-c lock_timeout=5s") as connection,
            ):
                while not self._stop.is_set():
                    with suppress(*_MEANWHILE):
                        if number:
                            self._change_rows(connection, rng)
                        else:
                            self._change_columns(connection, rng)
            time.sleep(0.1)  # The server recovers.

    def _change_rows(self, connection: psycopg.Connection[Any], rng: random.Random) -> None:
        most, few = self._rows * 6 // 10, self._rows // 10
        with connection.transaction():
            for account in sorted(rng.sample(range(1, most + 1), 3)):
                change = "UPDATE accounts SET balance = balance + 1.25, v = v + 1 WHERE id = %s"
                connection.execute(change, [account])
            order = rng.randrange(1, most)
            match rng.randrange(10):
                case 0:
                    connection.execute("DELETE FROM orders WHERE id = %s", [order])
                case 1 | 2:
                    connection.execute(
                        "UPDATE customers SET name = %s, v = v + 1 WHERE code = %s",
                        [f"name {rng.randrange(1000)}", f"c{rng.randrange(1, few + 1)}"],
                    )
                case 3 | 4 | 5:
                    connection.execute(
                        "INSERT INTO orders (id, state, total, v)"
                        " VALUES (nextval('order_ids'), 'new', %s, 1)",
                        [order],
                    )
                case _:
                    change = "UPDATE orders SET state = 'paid', v = v + 1 WHERE id = %s"
                    connection.execute(change, [order])
        self.transactions += 1
        time.sleep(rng.random() * 2 * self._pause)

    def _change_columns(self, connection: psycopg.Connection[Any], rng: random.Random) -> None:
        self._stop.wait(rng.uniform(0.5, 2.5))
        act, table = rng.choice(tuple(self.changes)), rng.choice(tuple(TABLES))
        number = sum(self.changes.values()) + 1
        if act == "add":
            statement = f"ALTER TABLE {table} ADD COLUMN extra_{number} int DEFAULT {number}"
        elif act == "drop":
            names = connection.execute(_EXTRAS, [table]).fetchall()
            if not names:
                return
            statement = f"ALTER TABLE {table} DROP COLUMN {names[0][0]}"
        else:
            statement = rng.choice(
                (
                    f"ALTER TABLE accounts ALTER note TYPE varchar({20 + number})",
                    f"ALTER TABLE accounts ALTER balance TYPE numeric({10 + number},2)",
                    f"ALTER TABLE customers ALTER name TYPE varchar({20 + number})",
                    "ALTER TABLE orders ALTER total TYPE bigint",
                )
            )
        connection.execute(statement)  # type: ignore[call-overload]
        self.changes[act] += 1


@dataclass
class LoadJudge:
    """Reads a log of the load's tables. ``problems`` has what is wrong, at most some of it."""

    problems: list[str] = field(default_factory=list)
    entries: int = 0
    copied: int = 0
    _rows: dict[str, dict[str, bytes]] = field(
        default_factory=lambda: {each: {} for each in TABLES}
    )
    _gone: set[tuple[str, str]] = field(default_factory=set)
    _complete: set[str] = field(default_factory=set)
    _ids: set[str] = field(default_factory=set)

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Read the whole log."""
        names = ("namespace", "op", "phase", "key", "source_id", "data", "headers")
        for batch in batches:
            for values in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
                self._read_entry(*values)
        self._check(self._complete == {*TABLES}, f"only {self._complete} were copied to their end")

    def _read_entry(
        self,
        namespace: str,
        op: str,
        phase: str,
        key: bytes | None,
        source_id: str | None,
        data: bytes | None,
        headers: list[dict[str, bytes]] | None,
    ) -> None:
        table = namespace.partition(".")[2]
        if table not in TABLES:
            return
        if source_id is not None:
            self._check(source_id not in self._ids, f"{source_id} comes twice")
            self._ids.add(source_id)
        if op == "noop":
            if phase == "complete":
                self._check(table not in self._complete, f"{table} is complete twice")
                self._complete.add(table)
            return
        assert key is not None
        self.entries += 1
        self._check(
            phase == "sync" or table not in self._complete, f"{table}: {phase} behind its end"
        )
        rows, text = self._rows[table], key.decode()
        what, before = f"{table} {text} {op} {source_id}", rows.get(text)
        self._check((table, text) not in self._gone, f"{what}: the key was deleted")
        if op == "delete":
            self._check(before is not None, f"{what}: there was no row")
            rows.pop(text, None)
            self._gone.add((table, text))
            return
        assert data is not None
        rows[text] = self._row(data, before, headers or [])
        version = orjson.loads(rows[text])["v"]
        if phase == "copy":
            self.copied += 1
            self._check(before is None, f"{what}: it is copied over a row")
        else:
            wanted = 1 if before is None else orjson.loads(before)["v"] + 1
            self._check(version == wanted, f"{what}: version {version} in place of {wanted}")
            self._check((op == "insert") == (before is None), f"{what}: behind {before!r}")

    @staticmethod
    def _row(data: bytes, before: bytes | None, headers: list[Any]) -> bytes:
        """Return the whole row, with the large values that the change left as they were."""
        pairs = (each.values() if isinstance(each, dict) else each for each in headers)
        unchanged = next((value for name, value in pairs if name == "pg-unchanged"), None)
        if unchanged is None:
            return data
        old = orjson.loads(before or b"{}")
        return orjson.dumps(
            orjson.loads(data) | {name: old.get(name) for name in orjson.loads(unchanged)}
        )

    def compare(self, database: Database) -> int:
        """Compare the last row of each key with those of *database*; return their number."""
        count = 0
        with database.connect(autocommit=False) as connection:
            for table, key in TABLES.items():
                rows = self._rows[table]
                with connection.cursor(f"all_{table}") as cursor:
                    cursor.itersize = 20_000
                    cursor.execute(f"SELECT {key}::text, row_to_json(t)::text FROM {table} t")
                    for text, row in cursor:
                        count += 1
                        self._compare_row(f"{table} {text}", rows.pop(text, None), row.encode())
                self._check(
                    not rows, f"{table}: {len(rows)} rows that are not there: {[*rows][:3]}"
                )
        return count

    def _compare_row(self, what: str, logged: bytes | None, real: bytes) -> None:
        if logged == real:
            return
        if logged is None:
            self._check(is_right=False, problem=f"{what} is missing")
            return
        found = orjson.loads(logged)
        for name, value in orjson.loads(real).items():
            extra = _EXTRA.match(name)
            # A row that was logged before the column was added has its default.
            default = int(extra[1]) if extra else None
            self._check(found.get(name, default) == value, f"{what}: {logged!r}, not {real!r}")

    def _check(self, is_right: bool, problem: str) -> None:
        if not is_right and len(self.problems) < 20:
            self.problems.append(problem)
