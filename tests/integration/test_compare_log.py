"""Comparison of tables with the last state of each key in a log, which this test makes up."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pg_writer_tools import CONTEXT, Driver, deletion, partial_row, row, truncation_entry

from transporter.adaptor import Entries, Finding
from transporter.comparison import (
    ComparedTable,
    CompareOptions,
    RouteProgress,
    RowDifference,
    UndecidedRow,
)
from transporter.errors import ActionRefused, RouteFault
from transporter.message import NOOP, Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.postgres import Database

pytestmark = pytest.mark.postgres

TABLE = "CREATE TABLE t (id int PRIMARY KEY, a int, b text)"


@dataclass
class Delivered:
    """A route whose log is a list of batches. Implements ``ComparedRoute``."""

    driver: Driver
    batches: list[Entries] = field(default_factory=list)
    name: str = CONTEXT.route
    log_id: str = CONTEXT.log_id
    readers: dict[str, object] = field(default_factory=dict)
    has_steps: bool = True
    is_whole: bool = True
    state: RouteProgress = field(default_factory=lambda: RouteProgress(-1))

    def deliver(self, *messages: Message) -> None:
        """Log and deliver one slice."""
        self.log(*messages)
        self.driver.park_batch(self.batches[-1])

    def log(self, *messages: Message) -> None:
        """Log one slice."""
        self.batches.append(self.driver.batch(messages))

    def takes(self, namespace: str) -> bool:
        return bool(namespace)

    def is_running(self) -> bool:
        return False

    def progress(self) -> RouteProgress:
        return self.state

    def last_offset(self) -> int:
        return self.batches[-1].offsets[-1]

    def logged_reader(self, name: str) -> Any:
        raise AssertionError(name)

    def read(self, first: int, last: int) -> Iterator[tuple[int, Entries]]:
        for batch in self.batches:
            places = [place for place, at in enumerate(batch.offsets) if first <= at <= last]
            if places:
                part = batch.batch.slice(places[0], len(places))
                yield batch.offsets[places[-1]], replace(batch, batch=part)

    def compare(self, **options: Any) -> list[Any]:
        """Return the results of the comparison, but not the tables."""
        found = self.driver.writer.compare(self, CompareOptions("log", **options))
        return [each for each in found if not isinstance(each, ComparedTable)]

    def differing(self) -> list[tuple[str, list[str]]]:
        """Return kind and key of each row that differs."""
        found = self.compare()
        assert all(isinstance(each, RowDifference) for each in found), found
        return sorted((each.kind, [*each.key.values()]) for each in found)


def delivered(database: Database, **settings: Any) -> Delivered:
    """Return a route of a writer with these settings."""
    return Delivered(Driver(database, settings))


@pytest.fixture
def made(postgres: Database) -> Iterator[Any]:
    """Yield a function that returns a route, whose writer is closed at the end."""
    drivers = []

    def make(**settings: Any) -> Delivered:
        route = delivered(postgres, **settings)
        drivers.append(route.driver)
        return route

    yield make
    for each in drivers:
        each.close()


def test_every_kind_of_entry(postgres: Database, made: Any) -> None:
    """Rows, parts of rows, deletes and a TRUNCATE make the state that the writer makes."""
    postgres.execute(TABLE)
    route = made()
    route.deliver(row("t", 9, id=9, a=1, b="gone"), truncation_entry("t"))
    route.deliver(
        *(row("t", n, id=n, a=n, b='é " \\') for n in range(5)),
        Message("public.t", None, None, NOOP),
        deletion("t", 3),
        partial_row("t", 1, ["b"], id=1, a=7),
        row("t", 2, "update", b="other", id=2),
        Message("public.t", b'{ "a" : 1.0 , "id":  4 , "b":"x" }', b"4"),
    )
    assert route.differing() == []
    route.log(row("t", 4, id=4, a=99))
    assert route.differing() == []  # It is not delivered.
    postgres.execute("UPDATE t SET b = 'x' WHERE id = 1; INSERT INTO t VALUES (3), (9)")
    postgres.execute("DELETE FROM t WHERE id = 0")
    assert route.differing() == [
        ("different", ["1"]), ("extra", ["3"]), ("extra", ["9"]), ("missing", ["0"])
    ]  # fmt: skip
    route.is_whole = False
    warning, *found = route.compare()
    assert isinstance(warning, Finding)
    # The log has a delete of 3.
    assert {each.key["id"] for each in found} == {"0", "1", "3"}


@pytest.mark.exhaustive
def test_a_killed_comparison_leaves_no_file(postgres: Database, made: Any) -> None:
    """The collected rows are in a file that has no name, so that a kill leaves none."""
    postgres.execute(TABLE)
    route = made()
    route.deliver(*(row("t", n, id=n, a=n, b=f"{n:01000}") for n in range(6000)))
    postgres.execute("DELETE FROM t WHERE id = 5")
    with closing(route.driver.writer.compare(route, CompareOptions("log"))) as results:
        assert next(results).kind == "missing"
        opened = [each for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        names = [str(each.readlink()) for each in opened]
        (stored,) = [each for each in names if "/etilqs_" in each]
        assert stored.endswith(" (deleted)")


@pytest.mark.parametrize(
    ("kind", "texts", "other"),
    [
        ("numeric(9,2)", ["1", "2.0", "3.25"], "4"),
        ("timestamptz", ["2030-01-01", "2030-01-01T01:00:00+01:00", "2031-01-01"], "2032-01-01"),
        ("uuid", [f"{{0000000{n}-0000-4000-8000-00000000000A}}" for n in range(3)], "A" * 32),
        ("char(5)", ["a", "b ", "cc"], "d"),
        ("text", ["a", 'é "', "[1]"], "d"),
    ],
)
def test_keys_of_other_spellings(
    postgres: Database, made: Any, kind: str, texts: list[str], other: str
) -> None:
    """A key is found however the entry spells it."""
    postgres.execute(f"CREATE TABLE t (id {kind} PRIMARY KEY, v int)")
    route = made()
    route.deliver(*(row("t", text, id=text, v=n) for n, text in enumerate(texts)))
    assert route.differing() == []
    postgres.execute(f"INSERT INTO t VALUES ('{other}', 1)")
    postgres.execute("UPDATE t SET v = 50 WHERE v = 2")
    assert [kind for kind, _ in route.differing()] == ["different", "extra"]


@pytest.mark.parametrize(
    "kind", ["char(4)", "json", "jsonb", "numeric(6,2)", "timestamp(0)", "float8", "bytea", "int[]"]
)
@pytest.mark.exhaustive
def test_values_of_other_spellings(postgres: Database, made: Any, kind: str) -> None:
    """A value is equal if the writer would write it, however the entry spells it."""
    spelled = {
        "char(4)": "a", "json": {"b": [1, None], "a": 1}, "jsonb": {"b": 1.50, "a": "é"},
        "numeric(6,2)": 1.005, "timestamp(0)": "2030-01-01T00:00:00.6", "float8": "1e3",
        "bytea": "\\xAB", "int[]": [1, None],
    }  # fmt: skip
    postgres.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {kind})")
    route = made()
    route.deliver(row("t", 1, id=1, v=spelled[kind]), row("t", 2, id=2, v=None))
    assert route.differing() == []
    postgres.execute("UPDATE t SET v = (SELECT v FROM t WHERE id = 1) WHERE id = 2")
    assert route.differing() == [("different", ["2"])]


def test_settings_of_the_writer(postgres: Database, made: Any) -> None:
    """Marked rows count as deleted, and columns that the writer keeps for itself are passed."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, a int, gone boolean, rest jsonb)")
    route = made(delete={"mark": "gone"}, extra={"column": "rest"})
    route.deliver(row("t", 1, id=1, a=1, more="x"), row("t", 2, id=2, a=2), deletion("t", 2))
    assert route.differing() == []
    postgres.execute("UPDATE t SET gone = gone IS NOT TRUE")
    assert route.differing() == [("extra", ["2"]), ("missing", ["1"])]


def test_rows_that_stay(postgres: Database, made: Any) -> None:
    """With ``delete: ignore`` a row that only the sink has is no difference."""
    postgres.execute(TABLE)
    route = made(delete="ignore")
    route.deliver(row("t", 1, id=1), row("t", 2, id=2), deletion("t", 2))
    postgres.execute("INSERT INTO t VALUES (3)")
    assert route.differing() == []
    postgres.execute("DELETE FROM t WHERE id = 1")
    assert route.differing() == [("missing", ["1"])]


def test_parked_rows_differ(postgres: Database, made: Any) -> None:
    """An entry that the sink has refused is a row that differs, also if no type fits."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, a int CHECK (a > 0), b text)")
    route = made()
    route.deliver(row("t", 1, id=1, a=-1), row("t", 2, id=2, a="many"), row("t", 3, id=3, a=1))
    route.state = RouteProgress(route.last_offset())
    assert [(each.kind, each.key["id"], each.columns) for each in route.compare()] == [
        ("missing", "1", ()), ("different", "2", ())
    ]  # fmt: skip


def test_offsets_of_shards(postgres: Database, made: Any) -> None:
    """Rows that one shard may be behind with are looked at again, and are undecided in the end."""
    postgres.execute(TABLE)
    route = made()
    route.deliver(*(row("t", n, id=n, a=1) for n in (1, 2, 3)))
    first = route.last_offset()
    route.deliver(row("t", 1, id=1, a=2))
    query = "UPDATE transporter_progress SET shards = 2"
    postgres.execute(query)
    postgres.execute(
        "INSERT INTO transporter_progress SELECT owner, route, 1, holder, holder_log, holder_epoch,"
        " log_id, epoch, generation, 2, %s, run FROM transporter_progress",
        [first],
    )
    assert route.compare(patience=0.5) == [UndecidedRow("public.t", {"id": "1"})]
    postgres.execute('UPDATE transporter_progress SET "offset" = %s', [route.last_offset()])
    assert route.compare() == []


def test_refusals(postgres: Database, made: Any) -> None:
    """A comparison that is not possible is refused with its reason."""
    route = made()
    route.driver.writer.close()
    postgres.execute("DROP TABLE transporter_progress")
    with pytest.raises(ActionRefused, match="there is no table transporter_progress"):
        route.compare()
    postgres.execute(TABLE + "; CREATE TABLE keyless (id int)")
    route = made()
    route.deliver(row("t", 1, id=1))
    with pytest.raises(ActionRefused, match=r"the log has no row of public\.u"):
        route.compare(tables=["public.u"])
    route.state = RouteProgress(0, 0, is_replaying=True)
    with pytest.raises(ActionRefused, match="route route replays"):
        route.compare()
    route.state = RouteProgress(5)
    route.log(row("keyless", 1, id=1))
    route.state = RouteProgress(route.last_offset())
    with pytest.raises(RouteFault, match=r"public\.keyless has no primary key"):
        route.compare()
    with pytest.raises(ActionRefused, match="has steps, which may change rows"):
        [*route.driver.writer.compare(route, CompareOptions("source"))]
    route.has_steps = False
    with pytest.raises(ActionRefused, match="no reader follows a database"):
        [*route.driver.writer.compare(route, CompareOptions("source"))]
    with pytest.raises(ActionRefused, match="mode: append"):
        made(mode="append", evolve="create").compare()
