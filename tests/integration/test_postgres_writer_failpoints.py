"""Failures of the ``postgres`` writer's connection at every statement from BEGIN to COMMIT."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from pg_writer_tools import Driver, deletion, partial_row, row, schema_entry, truncation_entry
from psycopg.conninfo import make_conninfo
from transporter_adaptors.postgres.session import BoundedConnection

from transporter.errors import Rejected, SinkUnavailable
from transporter.testing import FaultyProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from services.postgres import Database

    from transporter.message import Message

pytestmark = pytest.mark.postgres

TABLES = """
DROP TABLE IF EXISTS child, parent;
CREATE TABLE parent (id int PRIMARY KEY, v int);
CREATE TABLE child (
    id int PRIMARY KEY, parent int REFERENCES parent (id), v int CHECK (v > 0), email text UNIQUE
);
INSERT INTO parent VALUES (100, 1);
"""
SLICES: list[list[Message]] = [
    [row("parent", n, id=n, v=n) for n in range(4)]
    + [row("child", n, id=n, parent=n, v=1, email=f"{n}@x") for n in range(4)],
    [
        # A unique value moves on, which needs the order of the log.
        row("child", 1, "update", id=1, parent=1, v=1, email="new"),
        row("child", 2, "update", id=2, parent=1, v=1, email="1@x"),
        partial_row("child", 3, ["email"], id=3, parent=3, v=9),
        row("child", 7, id=7, parent=3, v=-1, email="bad"),
        deletion("child", 0),
        deletion("parent", 0),
        row("child", 8, id=8, parent=77, v=1, email="no parent"),
        row("parent", 5, id=5, v=5),
    ],
    [
        schema_entry("parent", ["id"], id="int!", v="int", note="text"),
        row("parent", 6, id=6, v=6, note="new column"),
        truncation_entry("parent"),
        truncation_entry("child"),
        row("parent", 9, id=9, v=9, note="last"),
    ],
    [row("child", 9, id=9, parent=9, v=9, email="9@x")],
]
BAD = {7, 8}
"""The keys of the rows that are parked."""


@dataclass
class Failpoint:
    """A call before a statement of the writer. It counts statements until then."""

    act: Callable[[], object]
    place: int
    count: int = 0
    places: list[str] = field(default_factory=list)

    def on_statement(self, query: Any) -> None:
        """Count *query*, and act at the wanted place."""
        if self.count == self.place:
            self.act()
        self.count += 1
        self.places.append(str(query).split(None, 1)[0])


class Faulty:
    """A writer whose connection fails at one statement, and the state of its target."""

    def __init__(self, database: Database, proxy: FaultyProxy) -> None:
        self.database, self.proxy = database, proxy
        self.next_offset = 1
        self.point = Failpoint(lambda: None, -1)
        self.reached = -1
        self.failures = 0

    def run(self, act: Callable[[], object], place: int) -> None:
        """Deliver all slices, with one fault, and check the target after each attempt."""
        self.database.execute(TABLES)
        settings = {"dsn": make_conninfo(self.database.tcp_dsn(), port=self.proxy.port)}
        driver = Driver(self.database, settings | {"evolve": "add"}, next_offset=self.next_offset)
        try:
            driver.deliver()  # It is open before the first statement that counts.
            self.point = Failpoint(act, place)
            parked = {key for messages in SLICES for key in self._deliver(driver, messages)}
            self.point = Failpoint(lambda: None, -1, self.point.count, self.point.places)
        finally:
            driver.close()
        self.next_offset = driver.next_offset
        assert parked == BAD, (place, parked)
        assert self.contents() == (
            [(9, 9, "last")], [(9, 9, 9, "9@x")]
        ), place  # fmt: skip

    def contents(self) -> tuple[list[Any], list[Any]]:
        """Return all rows."""
        rows = (f"SELECT * FROM {table} ORDER BY 1" for table in ("parent", "child"))
        parents, children = map(self.database.execute, rows)
        return parents, children

    def _deliver(self, driver: Driver, messages: list[Message]) -> set[int]:
        """Deliver a slice, and return the keys that are parked."""
        batch, begin, parked = driver.batch(messages), 0, set[int]()
        while begin < len(batch):
            part = batch.batch.slice(begin)
            rest = type(batch)(part, batch.log_id, batch.generation)
            try:
                ack = driver.write(rest)
            except SinkUnavailable:  # The new session failed as well.
                ack = None
            self._check_progress()
            self.proxy.heal()
            if ack is None:
                self.failures += 1
                driver.close()
                continue
            begin += len(ack.prefix)
            error = ack.failures[0][0] if ack.failures else None
            if isinstance(error, Rejected):
                parked.add(int(messages[begin].key or b""))
                begin += 1
            elif error is not None:
                assert isinstance(error, SinkUnavailable), error
                self.failures += 1
        return parked

    def _check_progress(self) -> None:
        """Check that the stored offset never goes back."""
        ((offset,),) = self.database.execute(
            'SELECT coalesce(max("offset"), -1) FROM transporter_progress'
        )
        assert offset >= self.reached
        self.reached = offset


@pytest.fixture
def faulty(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faulty]:
    """Yield a writer behind a proxy, whose statements count."""
    real = BoundedConnection.execute
    with FaultyProxy(("127.0.0.1", postgres.server.port)) as proxy:
        made = Faulty(postgres, proxy)

        def execute(self: BoundedConnection, query: Any, *arguments: Any, **options: Any) -> Any:
            made.point.on_statement(query)
            return real(self, query, *arguments, **options)

        monkeypatch.setattr(BoundedConnection, "execute", execute)
        yield made


def acts(faulty: Faulty) -> dict[str, Callable[[], object]]:
    """Return the faults."""
    sessions = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE client_port > 0"
    proxy = faulty.proxy
    return {
        "cut": proxy.cut,
        "lose": proxy.lose_answers,
        "lose part": lambda: proxy.lose_answers(40),
        "terminate": lambda: faulty.database.execute(
            f"{sessions} AND datname = current_database()"
        ),
    }


@pytest.mark.exhaustive
def test_a_fault_at_some_statements(faulty: Faulty) -> None:
    """Whatever fails, rows are those of the log, and exactly the bad ones are parked."""
    faulty.run(lambda: None, -1)
    places = faulty.point.places
    assert places.count("COMMIT") >= 6
    assert {"BEGIN", "SAVEPOINT", "ROLLBACK", "INSERT", "DELETE", "TRUNCATE", "ALTER"} <= {*places}
    for number, place in enumerate(range(3, len(places), 41)):
        faulty.run([*acts(faulty).values()][number % 4], place)
    assert faulty.failures > 2


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("act", ["cut", "lose", "lose part", "terminate"])
def test_a_fault_at_every_statement(faulty: Faulty, act: str) -> None:
    """The same at each statement from the first BEGIN to the answer to the last COMMIT."""
    faulty.run(lambda: None, -1)
    count = faulty.point.count
    for place in range(count):
        faulty.run(acts(faulty)[act], place)
    assert faulty.failures >= count // 2
