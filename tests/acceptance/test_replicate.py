"""pipelines/replicate.yaml: a database becomes the copy of another, across kills of the engine."""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from acceptance_tools import await_true, gone, running, transporter
from cdc_tools import KEYS, Writers, clean_slots, prepare_traced
from cdc_values import MADE
from pg_type_tables import EVERYTHING, LOST, create_table, insert_values, texts
from services.postgres import fresh_database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.postgres import Database

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

PIPELINE = Path(__file__).parents[2] / "pipelines" / "replicate.yaml"
TABLES = """
CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL, seen timestamptz, tags text[]);
CREATE TABLE orders (
    shop int, number int, customer bigint REFERENCES customers, total numeric(10,2), doc jsonb,
    note text, PRIMARY KEY (shop, number)
);
ALTER TABLE orders ALTER note SET STORAGE EXTERNAL;
INSERT INTO customers SELECT n, 'é "' || n, now(), ARRAY['a', NULL, n::text]
FROM generate_series(1, 300) n;
INSERT INTO orders SELECT n % 3, n, n, n / 7.0, jsonb_build_object('n', n), repeat('x', 3000)
FROM generate_series(1, 300) n;
"""
CHANGES = """
UPDATE orders SET total = total + 1 WHERE number < 100;
DELETE FROM orders WHERE number BETWEEN 100 AND 120;
UPDATE orders SET shop = 9 WHERE number = 150;
ALTER TABLE customers ADD COLUMN points int;
UPDATE customers SET points = id * 2 WHERE id < 50;
INSERT INTO customers VALUES (1000, 'last', NULL, '{}', 5);
"""


@contextmanager
def prepare_replication(
    source: Database, target: Database, folder: Path
) -> Iterator[dict[str, Any]]:
    """Yield the pipeline's file and variables, and drop the reader's slot at the end."""
    file = folder / "replicate.yaml"
    file.write_text(PIPELINE.read_text())
    with clean_slots(source):
        yield {
            "pipeline": file,
            "SOURCE_DSN": source.dsn,
            "TARGET_DSN": target.dsn,
            "REPLICATE_DIR": str(folder),
        }


def contents(database: Database, *tables: str) -> dict[str, set[str]]:
    """Return all rows of *tables*, or an empty dictionary while one does not exist."""
    there = database.execute("SELECT count(to_regclass(t)) FROM unnest(%s::text[]) t", [[*tables]])
    if there != [(len(tables),)]:
        return {}
    return {
        table: {row[0] for row in database.execute(f"SELECT row_to_json(t)::text FROM {table} t")}
        for table in tables
    }


def offset(target: Database) -> int:
    """Return the stored offset, or -1."""
    if target.execute("SELECT to_regclass('transporter_progress')") == [(None,)]:
        return -1
    return target.execute('SELECT coalesce(max("offset"), -1) FROM transporter_progress')[0][0]


def await_equal(source: Database, target: Database, *tables: str, timeout: float = 60) -> None:
    """Wait until *tables* have the same rows in both databases."""
    await_true(
        lambda: contents(target, *tables) == contents(source, *tables), timeout, "equal tables"
    )


def compare(settings: dict[str, Any], *words: str) -> dict[str, int]:
    """Check by ``transporter compare`` that no row differs. Return the rows of each table.

    While an engine runs, it waits until everything is delivered.
    """
    file, *variables = settings
    named = {name: settings[name] for name in variables}
    result = transporter("compare", str(settings[file]), "target", *words, **named)
    assert (result["differences"], result["undecided"]) == ([], [])
    return {each["table"]: each["rows"] for each in result["tables"]}


@pytest.mark.exhaustive
@pytest.mark.timeout(180)
def test_an_empty_database_becomes_the_copy(postgres: Database, tmp_path: Path) -> None:
    """Tables, rows and changes arrive, across a kill -9 and new columns, and nothing else."""
    source = postgres
    source.execute(TABLES)
    with (
        fresh_database(source.server) as target,
        prepare_replication(source, target, tmp_path) as settings,
    ):
        with running(**settings):
            await_true(lambda: offset(target) > 100, 90, "the first rows")
        before = offset(target)
        source.execute(CHANGES)
        with running(**settings) as engine:
            engine.await_event("reader-opened")
            assert compare(settings) == {"public.customers": 301, "public.orders": 279}
            assert offset(target) >= before
            assert contents(target, "customers") == contents(source, "customers")
            source.execute("TRUNCATE orders; INSERT INTO orders (shop, number) VALUES (1, 1)")
            await_equal(source, target, "customers", "orders")
            assert engine.stop() == 0
        assert compare(settings, "--with", "log") == {"public.customers": 301, "public.orders": 1}
        key = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'orders_pkey'"
        assert target.execute(key) == source.execute(key)


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_the_copy_is_exact_across_kills(postgres: Database, tmp_path: Path) -> None:
    """Beside writers, new columns and kill -9, source and target are equal in the end."""
    chance, source = random.Random(11), postgres
    prepare_traced(source)
    source.execute("DROP TRIGGER trace ON numbers; DROP TRIGGER trace ON words")
    with (
        fresh_database(source.server) as target,
        prepare_replication(source, target, tmp_path) as settings,
    ):
        reached = -1
        with Writers(source, KEYS, seed=11):
            for number in range(5):
                with running(**settings) as engine:
                    engine.await_event("reader-opened")
                    source.execute(f"ALTER TABLE numbers ADD COLUMN extra_{number} int")
                    time.sleep(chance.uniform(0.5, 6.0))
                    assert gone(engine.kill(), timeout=5) == []
                assert offset(target) >= reached
                reached = offset(target)
        with running(**settings) as engine:
            source.execute("INSERT INTO numbers VALUES (100000, 'end')")
            await_equal(source, target, "numbers", "words", timeout=120)
            assert engine.stop() == 0
        for words in ([], ["--with", "log"]):
            assert compare(settings, *words).keys() >= {"public.numbers", "public.words"}
        assert offset(target) > reached


PARK = """
name: replicate
log: {dir: log}
readers:
  - {name: source, adaptor: postgres-cdc, dsn: "${SOURCE_DSN}", tables: [public.*]}
routes:
  - name: target
    on_error: park
    retry: {attempts: 2, backoff: 10ms..1s}
    writer: {adaptor: postgres, dsn: "${TARGET_DSN}"}
"""


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize("every", [1000, 10])
def test_bad_rows_are_parked(postgres: Database, tmp_path: Path, every: int) -> None:
    """A running engine parks exactly the rows that the target refuses, across a kill."""
    source, count = postgres, 100 * min(every, 50)
    source.execute("CREATE TABLE items (id int PRIMARY KEY, v int, parent int)")
    source.execute(
        "INSERT INTO items SELECT n, CASE WHEN n %% %s = 1 THEN -1 ELSE n END,"
        " CASE WHEN n %% %s = 2 THEN 77 ELSE 1 END FROM generate_series(1, %s) n",
        [2 * every, 2 * every, count],
    )
    bad = {n for n in range(1, count + 1) if n % (2 * every) in {1, 2}}
    with (
        fresh_database(source.server) as target,
        prepare_replication(source, target, tmp_path) as settings,
    ):
        target.execute("CREATE TABLE parents (id int PRIMARY KEY); INSERT INTO parents VALUES (1)")
        target.execute(
            "CREATE TABLE items (id int PRIMARY KEY, v int CHECK (v > 0),"
            " parent int REFERENCES parents)"
        )
        settings["pipeline"].write_text(PARK)
        here = "SELECT count(*) FROM items"
        with running(**settings):
            await_true(lambda: target.execute(here)[0][0] > 20, 90, "the first rows")
        with running(**settings) as engine:
            await_true(lambda: target.execute(here) == [(count - len(bad),)], 120, "all good rows")
            source.execute("INSERT INTO items VALUES (1000000, 1, 1)")
            last = "SELECT count(*) FROM items WHERE id = 1000000"
            await_true(lambda: target.execute(last) == [(1,)], 60, "the last row")
            assert engine.stop() == 0
        variables = {name: settings[name] for name in ("SOURCE_DSN", "TARGET_DSN")}
        parked = transporter("parked", "list", str(settings["pipeline"]), "target", **variables)
        assert len(parked) == len(bad), parked[:2]
        keys = {row[0] for row in target.execute("SELECT id FROM items")}
        assert keys == {*range(1, count + 1), 1000000} - bad


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_every_type_is_copied(postgres: Database, tmp_path: Path) -> None:
    """Values of every type arrive by the copy and by the stream, across kills."""
    source = postgres
    tables: dict[str, str] = {}
    with source.connect(client_encoding="utf8") as connection:
        connection.execute(MADE)
        for number, kind in enumerate(each for each in EVERYTHING if each not in LOST):
            if create_table(connection, f"t_{number}", kind):
                tables[f"t_{number}"] = kind
        connection.execute("DROP TABLE public.rows CASCADE")
        tables = {name: kind for name, kind in tables.items() if kind != "public.rows"}
    assert len(tables) > 85
    with (
        fresh_database(source.server) as target,
        prepare_replication(source, target, tmp_path) as settings,
    ):
        target.execute(MADE)
        target.execute("DROP TABLE public.rows CASCADE")
        with running(**settings):
            await_true(lambda: offset(target) > 50, 120, "the first rows")
        with source.connect(client_encoding="utf8") as connection:
            for table, kind in tables.items():
                insert_values(connection, table, kind, 1000)
                connection.execute(f"UPDATE public.{table} SET a = NULL WHERE n %% 2 = 0", [])
                connection.execute(f"UPDATE public.{table} SET n = n + 5000 WHERE n %% 3 = 0", [])
                connection.execute(f"DELETE FROM public.{table} WHERE n %% 7 = 0", [])
            connection.execute("CREATE TABLE public.finish (id int PRIMARY KEY)")
            connection.execute("INSERT INTO public.finish VALUES (1)")
        with running(**settings):
            time.sleep(4.0)
        with running(**settings) as engine:
            await_equal(source, target, "finish", timeout=180)
            with source.connect() as left, target.connect() as right:
                for table, kind in tables.items():
                    await_true(
                        lambda table=table, kind=kind: (
                            texts(left, table, kind) == texts(right, table, kind)
                        ),
                        120,
                        kind,
                    )
            assert engine.stop() == 0
        for words in ([], ["--with", "log"]):
            assert len(compare(settings, *words)) > len(tables)
