"""``transporter compare`` on real servers: a running copy, and rows that differ in every way."""

from __future__ import annotations

import json
import random
import threading
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from acceptance_tools import await_true
from cdc_tools import clean_slots
from engine_tools import running
from services.postgres import fresh_database
from transporter_adaptors.postgres_writer.comparing import key_ranges, with_log

from transporter.cli import app
from transporter.pipeline.config import load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from services.postgres import Database

    from transporter.engine.engine import Engine

pytestmark = pytest.mark.postgres

SCHEMA = """
CREATE TABLE orders (
    shop int, number bigint, total numeric(10,2), seen timestamptz, doc jsonb, note text,
    PRIMARY KEY (shop, number)
);
CREATE TABLE words (word text PRIMARY KEY, v int);
CREATE TABLE marks (id int PRIMARY KEY);
"""
ROWS = """
INSERT INTO orders SELECT n % 3, n, n / 7.0, now(), jsonb_build_object('n', n), 'é "' || n
FROM generate_series(1, {}) n;
INSERT INTO words SELECT 'word ' || n, n FROM generate_series(1, 30) n;
"""
MOVE = """
UPDATE orders SET shop = 3 - shop WHERE number = %s AND shop IN (1, 2) AND NOT EXISTS (
    SELECT FROM orders o WHERE o.number = orders.number AND o.shop = 3 - orders.shop)
"""
EQUAL = (0, [])


@dataclass
class Copy:
    """A pipeline that copies a database, and the command."""

    source: Database
    target: Database
    folder: Path
    capsys: pytest.CaptureFixture[str]
    reader: dict[str, Any] = field(default_factory=dict)
    writer: dict[str, Any] = field(default_factory=dict)
    route: dict[str, Any] = field(default_factory=dict)

    def write_file(self) -> Path:
        """Write the pipeline file."""
        reader = {
            "name": "source", "adaptor": "postgres-cdc", "dsn": self.source.dsn,
            "tables": ["public.*"], "schema": "entries", **self.reader,
        }  # fmt: skip
        writer = {"adaptor": "postgres", "dsn": self.target.dsn, "evolve": "create", **self.writer}
        file = self.folder / "pipeline.yaml"
        document = {
            "log": {"dir": "log"},
            "readers": [reader],
            "routes": [{"name": "target", "writer": writer, **self.route}],
            "commit_interval": "50ms",
        }
        file.write_text(json.dumps(document))
        return file

    @contextmanager
    def running(self) -> Iterator[Engine]:
        """Run the pipeline."""
        with running(load(self.write_file(), {})) as engine:
            yield engine

    def await_copy(self) -> None:
        """Wait until everything that is committed now is in the target."""
        ((mark,),) = self.source.execute(
            "INSERT INTO marks SELECT count(*) FROM marks RETURNING id"
        )
        there = "SELECT to_regclass('marks') IS NOT NULL"
        await_true(lambda: self.target.execute(there) == [(True,)], 30, "the table of marks")
        last = f"SELECT count(*) FROM marks WHERE id = {mark}"
        await_true(lambda: self.target.execute(last) == [(1,)], 30, "the mark")

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Keep the source moving: a reader logs the position of an idle one once a minute."""
        ended = threading.Event()
        thread = threading.Thread(target=self._move, args=(ended,))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _move(self, ended: threading.Event) -> None:
        with self.source.connect(autocommit=True) as connection:
            while not ended.wait(0.05):
                connection.execute("INSERT INTO marks SELECT 1000 + count(*) FROM marks")

    def compare_json(self, *words: str) -> tuple[int, Any]:
        """Run the command. Return the exit code, and the result or the error."""
        self.capsys.readouterr()
        code = app.execute(
            ["compare", str(self.folder / "pipeline.yaml"), "target", *words, "--json"]
        )
        found = json.loads(self.capsys.readouterr().out)
        assert found["ok"] == (code == 0), found
        return code, found["result"] if "result" in found else found["error"]["message"]

    def compare(self, *words: str) -> tuple[int, list[tuple[Any, ...]]]:
        """Return the exit code, and the rows that differ."""
        code, result = self.compare_json(*words)
        assert isinstance(result, dict), result
        return code, sorted(
            (each["table"], each["kind"], [*each["key"].values()], each["columns"])
            for each in result["differences"]
        )


@pytest.fixture
def copy(postgres: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Copy]:
    """Yield a pipeline from a database with tables into an empty one."""
    with fresh_database(postgres.server) as target, clean_slots(postgres):
        yield Copy(postgres, target, tmp_path, capsys)


@contextmanager
def reader_role(copy: Copy) -> Iterator[str]:
    """Yield a role that may only read the tables of both databases."""
    role = f"compare_{uuid.uuid4().hex[:8]}"
    copy.source.execute(f"CREATE ROLE {role} LOGIN")
    try:
        for each in (copy.source, copy.target):
            each.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
        yield role
    finally:
        for each in (copy.source, copy.target):
            each.execute(f"DROP OWNED BY {role}")
        copy.source.execute(f"DROP ROLE {role}")


def spoil(target: Database) -> None:
    """Change rows of the target behind the pipeline's back, in every way."""
    target.execute("DELETE FROM orders WHERE number = 7")
    target.execute("UPDATE orders SET note = NULL, total = 0 WHERE number = 8")
    target.execute("UPDATE words SET v = -1 WHERE word = 'word 5'")
    target.execute("INSERT INTO words VALUES ('only here', 1)")


SPOILT = (
    1,
    [
        ("public.orders", "different", ["2", "8"], ["total", "note"]),
        ("public.orders", "missing", ["1", "7"], []),
        ("public.words", "different", ["word 5"], ["v"]),
        ("public.words", "extra", ["only here"], []),
    ],
)


def check_values(copy: Copy, *words: str) -> None:
    """Check that values are shown if they are asked for, and else in keys alone."""
    _, result = copy.compare_json("--values", *words)
    found = {(each["table"], each["kind"]): each for each in result["differences"]}
    row = found["public.orders", "different"]
    assert row["expected"] == {"total": "1.14", "note": 'é "8'}
    assert row["found"] == {"total": "0.00", "note": None}
    assert found["public.orders", "missing"]["expected"]["doc"] == '{"n": 7}'
    assert found["public.words", "extra"]["found"] == {"word": "only here", "v": "1"}
    copy.capsys.readouterr()
    assert app.execute(["compare", str(copy.folder / "pipeline.yaml"), "target", *words]) == 1
    shown = copy.capsys.readouterr().out
    assert "public.orders  differs  shop=2 number=8  total, note\n" in shown
    assert "public.words  only in the sink  word=only here\n" in shown
    assert shown.endswith("4 rows differ\n")
    assert "é" not in shown


def test_rows_that_differ(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy is equal, and every row that is changed by hand is named, whatever is compared."""
    monkeypatch.setattr(key_ranges, "CHUNK", 300)
    monkeypatch.setattr(key_ranges, "LEAF", 10)
    monkeypatch.setattr(with_log, "_CHUNK", 170)
    copy.source.execute(SCHEMA + ROWS.format(1000))
    with copy.running():
        copy.await_copy()
        code, result = copy.compare_json()
        assert (code, result["differences"], result["undecided"]) == (0, [], [])
        rows = {each["table"]: each["rows"] for each in result["tables"]}
        assert rows == {"public.marks": 1, "public.orders": 1000, "public.words": 30}
        assert copy.compare("--with", "log") == EQUAL
        spoil(copy.target)
        with copy.moving():
            for words in ([], ["--with", "log"]):
                assert copy.compare(*words) == SPOILT
        assert copy.compare("--table", "public.marks") == EQUAL
    for words in ([], ["--with", "log"]):
        assert copy.compare(*words) == SPOILT
        check_values(copy, *words)
    code, result = copy.compare_json("--limit", "2")
    assert (code, len(result["differences"]), result["limited"]) == (1, 2, True)
    copy.source.execute("UPDATE words SET v = 77 WHERE word = 'word 6'")
    code, result = copy.compare_json("--table", "public.words")
    assert (code, len(result["differences"])) == (1, 3)
    assert "no engine runs: changes that it has yet to deliver differ, too" in result["notes"]
    assert len(copy.compare("--table", "public.words", "--with", "log")[1]) == 2

    with reader_role(copy) as role:
        copy.reader, copy.writer = (
            {"dsn": each.dsn_as(role)} for each in (copy.source, copy.target)
        )
        copy.write_file()
        for words in (["--table", "public.words"], ["--with", "log"]):
            code, result = copy.compare_json(*words)
            assert (code, len(result["differences"])) == (1, 3 if "--table" in words else 4)
        copy.target.execute(f"REVOKE SELECT ON words FROM {role}")
        for words in (["--table", "public.words"], ["--with", "log"]):
            problem = (
                f"role {role} may not read public.words: GRANT SELECT ON public.words TO {role}"
            )
            assert copy.compare_json(*words) == (3, problem)


def change_rows(database: Database, seed: int, ended: threading.Event) -> None:
    """Change random rows in every way until *ended*."""
    chance = random.Random(seed)
    with database.connect(autocommit=True) as connection:
        while not ended.wait(0.003):
            n = chance.randrange(400)
            connection.execute(
                chance.choice(
                    [
                        "UPDATE orders SET total = total + 1 WHERE number = %s",
                        "DELETE FROM orders WHERE number = %s",
                        "INSERT INTO orders (shop, number) VALUES (1, %s) ON CONFLICT DO NOTHING",
                        MOVE,
                    ]
                ),
                [n],
            )


SHARDS = {"truncate": "ignore", "evolve": "none"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("writer", [{}, SHARDS])
def test_a_running_copy_has_no_false_difference(copy: Copy, writer: dict[str, Any]) -> None:
    """Beside writers a comparison finds exactly the rows that were changed by hand."""
    copy.source.execute(SCHEMA + ROWS.format(400))
    if writer:
        copy.target.execute(SCHEMA)
        copy.writer, copy.route = writer, {"parallelism": 2}
    ended = threading.Event()
    with copy.running():
        copy.await_copy()
        writers = [
            threading.Thread(target=change_rows, args=(copy.source, seed, ended))
            for seed in range(2)
        ]
        for each in writers:
            each.start()
        try:
            for words in ([], ["--with", "log"]) * (3 if writer else 1):
                assert copy.compare(*words) == EQUAL
            copy.target.execute("UPDATE words SET v = -1 WHERE word = 'word 5'")
            for words in ([], ["--with", "log"]):
                assert copy.compare(*words) == (
                    1, [("public.words", "different", ["word 5"], ["v"])]
                )  # fmt: skip
        finally:
            ended.set()
            for each in writers:
                each.join()
        # A row that a running engine does not deliver in time is undecided.
        with copy.target.connect(autocommit=False) as blocker:
            blocker.execute("LOCK TABLE transporter_progress IN SHARE MODE")
            copy.source.execute("UPDATE words SET v = 0 WHERE word = 'word 7'")
            code, result = copy.compare_json("--table", "public.words", "--wait", "0.3s")
            late = [each["key"]["word"] for each in result["undecided"]]
            assert (code, result["differences"], "word 7" in late) == (3, [], True)
