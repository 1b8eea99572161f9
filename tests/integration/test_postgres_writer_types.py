"""Values of every type arrive as they were, through the server's own JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg
import pytest
from cdc_oracle import SESSION, Oracle
from cdc_values import LITERALS, MADE
from pg_nodes import nodes
from pg_type_tables import EVERYTHING, LOST, create_table, texts
from pg_writer_tools import Driver, deletion
from services.postgres import VERSIONS, Database, fresh_database

from transporter.message import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.postgres


@pytest.fixture
def driver(postgres: Database) -> Iterator[Driver]:
    """Return a driver of a writer with the default settings."""
    made = Driver(postgres)
    yield made
    made.close()


def copy(driver: Driver, table: str, rows: list[bytes]) -> None:
    """Write *rows* as the source's JSON."""
    driver.deliver(
        *(Message(f"public.{table}", data, str(n).encode()) for n, data in enumerate(rows, 1))
    )


def check_types(driver: Driver) -> set[str]:
    """Copy values of every type and compare them. Return the types that the server lacks."""
    driver.database.execute(MADE)
    lacking = set()
    with driver.database.connect(options=SESSION, client_encoding="utf8") as connection:
        oracle = Oracle(connection)
        for number, kind in enumerate(EVERYTHING):
            source, target = f"source_{number}", f"target_{number}"
            if kind in LOST:
                continue
            if not create_table(connection, source, kind):
                lacking.add(kind)
                continue
            connection.execute(f"CREATE TABLE public.{target} (LIKE public.{source} INCLUDING ALL)")
            encode = oracle.encoder(f"public.{source}").encode
            copy(driver, target, [*map(encode, oracle.copied(f"public.{source}"))])
            assert texts(connection, target, kind) == texts(connection, source, kind), kind
    return lacking


def test_every_type(driver: Driver) -> None:
    """Values of every type, in arrays too, are the same in the target."""
    assert check_types(driver) <= {"xml"}


KEYS: Final = [
    kind
    for kind in LITERALS
    if kind
    not in {
        *("json", "jsonpath", "xml", "point", "line", "lseg", "box", "path", "polygon", "circle"),
        *("xid", "cid", "aclitem", "pg_snapshot", "txid_snapshot", "refcursor", "bpchar"),
    }
]


def test_every_type_of_a_key(driver: Driver) -> None:
    """A delete finds its row by the text of the key, whatever its type is."""
    driver.database.execute(MADE)
    with driver.database.connect(options=SESSION, client_encoding="utf8") as connection:
        for number, kind in enumerate(KEYS):
            table = f"public.keys_{number}"
            try:
                connection.execute(f"CREATE TABLE {table} (k {kind} PRIMARY KEY)")
                connection.execute(
                    f"INSERT INTO {table} SELECT x::{kind} FROM unnest(%s::text[]) x"
                    " ON CONFLICT DO NOTHING",
                    [LITERALS[kind]],
                )
            except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedObject):
                continue
            # As pgoutput writes them.
            found = [cells[0] for cells in Oracle(connection).copied(table)]
            assert found
            driver.deliver(*(deletion(table[7:], key.decode()) for key in found))
            assert connection.execute(f"SELECT * FROM {table}").fetchall() == [], kind


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", sorted(VERSIONS))
def test_other_versions(version: str) -> None:
    """Every type arrives in servers of the other versions, too."""
    with nodes(version) as node:
        node.start()
        with fresh_database(node.service) as database:
            driver = Driver(database)
            try:
                assert check_types(driver) <= {"xml"}
            finally:
                driver.close()
