"""Random histories of tables with constraints leave the same rows in source and target."""

from __future__ import annotations

import json
import random
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from pg_nodes import WHEEL, nodes
from pg_writer_tools import Driver, deletion, row, truncation_entry
from services.postgres import fresh_database
from transporter_adaptors.postgres_cdc.entries import UNCHANGED_HEADER

from transporter.errors import RouteFault, SinkUnavailable

if TYPE_CHECKING:
    from services.postgres import Database

    from transporter.message import Message

pytestmark = pytest.mark.postgres

TABLES: Final = """
CREATE TABLE {schema}.parent (id int PRIMARY KEY, email text UNIQUE, big text NOT NULL);
CREATE TABLE {schema}.child (
    a int, b text, parent int REFERENCES {schema}.parent (id), twin int,
    PRIMARY KEY (a, b), UNIQUE (parent, twin)
);
CREATE TABLE {schema}.pet (
    id int PRIMARY KEY, owner int REFERENCES {schema}.parent (id) ON DELETE CASCADE
);
"""


class Source:
    """A database that changes at random, and the entries that its changes become."""

    def __init__(self, connection: psycopg.Connection[Any], seed: int) -> None:
        self.connection, self.chance = connection, random.Random(seed)
        self.messages: list[Message] = []
        connection.execute("CREATE SCHEMA source")
        connection.execute(TABLES.format(schema="source"))

    def change(self) -> None:
        """Try a change of one or two rows. One that breaks a constraint changes nothing."""
        made: list[Message] = []
        refused = (psycopg.errors.IntegrityError, psycopg.errors.RaiseException)
        with suppress(*refused), self.connection.transaction():
            for _ in range(self.chance.choice((1, 1, 1, 3))):
                made += self._change()
            self.messages += made

    def _change(self) -> list[Message]:
        changes = [self._parent, self._parent, self._child, self._child, self._child, self._pet]
        if self.chance.random() < 0.01:
            self.connection.execute("TRUNCATE source.parent, source.child, source.pet")
            return [truncation_entry("parent"), truncation_entry("child"), truncation_entry("pet")]
        return self.chance.choice(changes)()

    def _parent(self) -> list[Message]:
        draw = self.chance.randrange
        key, email = draw(8), f"e{draw(9)}"
        match draw(5):
            case 0 | 1:
                values = f"({key}, '{email}', 'big {draw(99)}')"
                return self._rows("parent", f"INSERT INTO source.parent VALUES {values}")
            case 2 | 3:
                changed, unchanged = f"email = '{email}'", "big"
                if draw(3) == 0:
                    changed, unchanged = f"big = 'big {draw(99)}'", "email"
                update = f"UPDATE source.parent SET {changed} WHERE id = {key}"
                return self._rows("parent", update, unchanged=unchanged)
            case _:
                return self._delete("parent", f"id = {key}") + self._pets_without_owner()

    def _child(self) -> list[Message]:
        draw = self.chance.randrange
        key, other, twin = draw(8), draw(8), draw(3)
        match draw(5):
            case 0 | 1:
                values = f"({key}, '{self.chance.choice('xy')}', {other}, {twin})"
                return self._rows("child", f"INSERT INTO source.child VALUES {values}")
            case 2 | 3:
                changed = f"parent = {other}, twin = {twin} WHERE a = {key}"
                return self._rows("child", f"UPDATE source.child SET {changed}")
            case _:
                moved = self._delete("child", f"a = {key}")
                if moved:
                    values = f"({other}, 'x', {key}, {twin})"
                    moved += self._rows("child", f"INSERT INTO source.child VALUES {values}")
                return moved

    def _pet(self) -> list[Message]:
        key, owner = self.chance.randrange(8), self.chance.randrange(8)
        if self.chance.random() < 0.3:
            return self._delete("pet", f"id = {key}")
        return self._rows("pet", f"INSERT INTO source.pet VALUES ({key}, {owner})")

    def _rows(self, table: str, statement: str, unchanged: str = "") -> list[Message]:
        query = f"{statement} RETURNING to_json({table}.*)::text"
        found = []
        for (text,) in self.connection.execute(query).fetchall():
            fields = json.loads(text)
            key = fields["id"] if "id" in fields else [fields["a"], fields["b"]]
            if unchanged:
                del fields[unchanged]
            op = "update" if statement.startswith("UPDATE") else "insert"
            message = row(table, key, op, **fields)
            if unchanged:
                headers = ((UNCHANGED_HEADER, json.dumps([unchanged]).encode()),)
                message = replace(message, headers=headers)
            found.append(message)
        return found

    def _delete(self, table: str, condition: str) -> list[Message]:
        columns = "a, b" if table == "child" else "id"
        query = f"DELETE FROM source.{table} WHERE {condition} RETURNING {columns}"
        rows = self.connection.execute(query).fetchall()
        return [deletion(table, [*each] if len(each) > 1 else each[0]) for each in rows]

    def _pets_without_owner(self) -> list[Message]:
        """Return the deletes that a cascade has made."""
        there = {each[0] for each in self.connection.execute("SELECT id FROM source.pet")}
        logged: dict[bytes, Message] = {}
        for message in self.messages:
            if message.op == "command":
                logged.clear()
            elif message.namespace == "public.pet":
                logged[message.key or b""] = message
        alive = {int(key) for key, each in logged.items() if each.op != "delete"}
        return [deletion("pet", number) for number in sorted(alive - there)]


def contents(
    database: Database, schema: str, *, parent: str = "*"
) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of all tables of a schema, and of the table *parent* these columns."""
    listed = {"parent": parent, "child": "a, b, parent, twin", "pet": "id, owner"}
    return {
        name: database.execute(f"SELECT {columns} FROM {schema}.{name} ORDER BY 1, 2")
        for name, columns in listed.items()
    }


@pytest.mark.parametrize("seed", range(4))
def test_random_histories(postgres: Database, seed: int) -> None:
    """Foreign keys, unique columns, cascades and parts of rows stop nothing, in any slices."""
    postgres.execute(TABLES.format(schema="public"))
    deliver_history(postgres, seed, Driver(postgres))
    assert contents(postgres, "public") == contents(postgres, "source")


@pytest.mark.parametrize("seed", range(4))
def test_random_histories_of_the_rest(postgres: Database, seed: int) -> None:
    """Fields in the column for the rest are those of the source, too, in any slices."""
    postgres.execute(
        TABLES.format(schema="public")
        + "ALTER TABLE parent DROP email, DROP big, ADD rest jsonb;"
        + "ALTER TABLE child ADD rest jsonb; ALTER TABLE pet ADD rest jsonb;"
    )
    deliver_history(postgres, seed, Driver(postgres, {"extra": {"column": "rest"}}))
    found = contents(postgres, "public", parent="id, rest->>'email', rest->>'big'")
    assert found == contents(postgres, "source")


def deliver_history(postgres: Database, seed: int, driver: Driver) -> None:
    """Deliver random changes by *driver*, in random slices."""
    chance = random.Random(seed)
    with postgres.connect() as connection:
        source = Source(connection, seed)
        while len(source.messages) < 400:
            source.change()
    done = 0
    try:
        while done < len(source.messages):
            size = chance.choice((1, 2, 5, 20, 100))
            # The reader logs the entries of one TRUNCATE together, and slices begin behind others.
            while source.messages[done : done + 1] == [truncation_entry("parent")] and size < 3:
                size += 1
            driver.next_offset = done + 1
            ack = driver.write(driver.batch(source.messages[done : done + size]))
            assert ack.complete or isinstance(ack.failures[0][0], SinkUnavailable), ack.failures
            done += len(ack.prefix)
    finally:
        driver.close()


@pytest.mark.exhaustive
def test_crashes_of_the_target() -> None:
    """After crashes of the target's server every slice is there once, and no offset goes back."""
    with nodes(WHEEL, fsync="on") as node:
        node.start()
        with fresh_database(node.service) as database:
            database.execute(
                "CREATE TABLE t (id int PRIMARY KEY, changes int NOT NULL DEFAULT 0, v int);"
                "CREATE FUNCTION count_change() RETURNS trigger LANGUAGE plpgsql AS $$"
                " BEGIN NEW.changes = OLD.changes + 1; RETURN NEW; END $$;"
                "CREATE TRIGGER counted BEFORE UPDATE ON t"
                " FOR EACH ROW EXECUTE FUNCTION count_change()"
            )
            driver = Driver(database)
            reached, crashes, number = -1, 0, 0
            stop = threading.Event()

            def crash() -> None:
                nonlocal crashes
                while not stop.wait(1.0):
                    node.crash()
                    crashes += 1

            thread = threading.Thread(target=crash)
            thread.start()
            try:
                while crashes < 5:
                    batch = driver.batch([row("t", n, id=n, v=number) for n in range(50)])
                    number += 1
                    while not write(driver, batch):
                        time.sleep(0.05)
            finally:
                stop.set()
                thread.join()
            ((_, reached),) = driver.stored()
            assert reached == number * 50
            found = database.execute("SELECT min(changes), max(changes), min(v) FROM t")
            assert found == [(number - 1, number - 1, number - 1)]
            driver.close()


def write(driver: Driver, batch: Any) -> bool:
    """Write *batch* once, by a new writer if the last one could not connect."""
    try:
        ack = driver.write(batch)
    except SinkUnavailable:
        driver.close()
        return False
    if not ack.complete:
        assert not isinstance(ack.failures[0][0], RouteFault), ack.failures
    return ack.complete
