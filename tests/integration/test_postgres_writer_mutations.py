"""Without each rule of the ``postgres`` writer, what its tests look for does happen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pg_writer_tools import Driver, deletion, row
from psycopg.conninfo import make_conninfo
from transporter_adaptors.postgres_writer import progress
from transporter_adaptors.postgres_writer.apply import Transactions
from transporter_adaptors.postgres_writer.rows import Shape
from transporter_adaptors.postgres_writer.upsert_mode import Upserts

from transporter.testing import FaultyProxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.postgres import Database

pytestmark = pytest.mark.postgres


@pytest.fixture
def driver(postgres: Database) -> Iterator[Driver]:
    """Return a driver of a writer with a table to write to."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, v int, email text UNIQUE)")
    made = Driver(postgres)
    yield made
    made.close()


def test_without_the_holder(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that was replaced writes on if the lock does not ask for the holder."""
    without = progress._FENCE.replace("AND holder = %(holder)s", "")
    monkeypatch.setattr(progress, "_FENCE", without)
    driver.deliver(row("t", 1, id=1))
    second = Driver(driver.database, next_offset=2)
    second.deliver(row("t", 2, id=2))
    second.close()
    driver.next_offset = 3
    driver.deliver(row("t", 3, id=3))
    assert len(driver.rows("t")) == 3


def test_without_a_look_at_the_stored_offset(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice whose answer was lost is applied twice if the stored offset is not looked at."""
    driver.database.execute("CREATE SEQUENCE changes")
    driver.database.execute(
        "CREATE FUNCTION count_change() RETURNS trigger LANGUAGE plpgsql AS $$"
        " BEGIN PERFORM nextval('changes'); RETURN NEW; END $$;"
        "CREATE TRIGGER counted BEFORE INSERT OR UPDATE ON t"
        " FOR EACH ROW EXECUTE FUNCTION count_change()"
    )
    monkeypatch.setattr(Transactions, "_covered", lambda *_: 0)
    real, lost = Transactions._finish, list[None]()
    with FaultyProxy(("127.0.0.1", driver.database.server.port)) as proxy:

        def lose(self: Transactions, *arguments: object) -> None:
            if not lost:
                lost.append(proxy.lose_answers())
            real(self, *arguments)

        monkeypatch.setattr(Transactions, "_finish", lose)
        driver.settings = {"dsn": make_conninfo(driver.database.tcp_dsn(), port=proxy.port)}
        batch = driver.batch([row("t", 1, id=1)])
        assert not driver.write(batch).complete
        proxy.heal()
        assert driver.write(batch).complete
        driver.close()
    # Its trigger ran twice in the second slice: for the insertion, and for the update.
    assert driver.database.execute("SELECT last_value > 1 FROM changes") == [(True,)]


def test_without_the_order_of_the_log(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A foreign key blames an innocent entry if the slice is not tried in the log's order."""
    driver.database.execute("CREATE TABLE child (id int PRIMARY KEY, t int REFERENCES t (id))")
    driver.deliver(row("t", 1, id=1), row("t", 2, id=2), row("child", 5, id=5, t=1))
    slice_ = (row("child", 5, "update", id=5, t=2), deletion("t", 1))
    monkeypatch.setattr(Upserts, "can_reorder", False)
    attempts: list[int] = []
    real = Transactions._attempt

    def count_attempts(self: Transactions, *arguments: object) -> object:
        attempts.append(1)
        return real(self, *arguments)

    monkeypatch.setattr(Transactions, "_attempt", count_attempts)
    driver.deliver(*slice_)
    # It had to be divided, as if one of the two were bad.
    assert len(attempts) == 3


def test_without_the_cut_before_a_part_of_a_row(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value is lost if a part of a row hides the change before it."""
    monkeypatch.setattr(Shape, "replaces", lambda *_: True)
    driver.deliver(row("t", 1, id=1, v=1, email="a"), row("t", 1, "update", id=1, v=2))
    assert driver.rows("t") == [(1, 2, None)]
