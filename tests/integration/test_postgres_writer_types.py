"""Values of every type arrive as they were, through the server's own JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from cdc_oracle import SESSION, Oracle
from cdc_values import ARRAY_LITERALS, LITERALS, MADE, MADE_LITERALS
from pg_nodes import nodes
from pg_writer_tools import Driver, gone
from services.postgres import VERSIONS, Database, fresh_database

from transporter.message import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.postgres

EVERYTHING: Final = {**LITERALS, **MADE_LITERALS, **ARRAY_LITERALS}
NO_KEY: Final = "n int PRIMARY KEY, v {kind}, a {kind}[], grid {kind}[]"
VALUES: Final = "n, v, ARRAY[v, NULL], ARRAY[[v, NULL], [NULL, v]]"
VALUES_OF_ARRAYS: Final = "n, v, NULL, NULL"
JSON: Final = {"json", "jsonb"}
"""Types whose values in an array may look like arrays of more dimensions."""
LOST: Final = {"int2vector", "oidvector"}
"""Types whose JSON the server does not take back. No table of an application has them."""


@pytest.fixture
def driver(postgres: Database) -> Iterator[Driver]:
    """Return a driver of a writer with the default settings."""
    made = Driver(postgres)
    yield made
    made.close()


def fill(connection: psycopg.Connection[Any], number: int, kind: str) -> bool:
    """Create a table with values of a type, and an empty one like it, if the server has it."""
    try:
        for table in (f"source_{number}", f"target_{number}"):
            connection.execute(f"CREATE TABLE public.{table} ({NO_KEY.format(kind=kind)})")
        values = VALUES_OF_ARRAYS if kind in {*ARRAY_LITERALS, *JSON} else VALUES
        connection.execute(
            f"INSERT INTO public.source_{number} SELECT {values} FROM (SELECT n, x::{kind} AS v"
            " FROM unnest(%s::text[]) WITH ORDINALITY AS u (x, n)) AS u",
            [[*EVERYTHING[kind], None]],
        )
    except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedObject):
        return False
    return True


def copy(driver: Driver, table: str, rows: list[bytes]) -> None:
    """Write *rows* as the source's JSON."""
    driver.deliver(
        *(Message(f"public.{table}", data, str(n).encode()) for n, data in enumerate(rows, 1))
    )


def texts(connection: psycopg.Connection[Any], table: str) -> list[tuple[Any, ...]]:
    """Return all values of *table* as text. Bounds of arrays are not in JSON."""
    columns = ", ".join(
        rf"regexp_replace({name}::text, '\[-?\d+:-?\d+\]=', '', 'g')" for name in ("v", "a", "grid")
    )
    return connection.execute(f"SELECT n, {columns} FROM public.{table} ORDER BY n").fetchall()


def as_json(text: str | None) -> str | None:
    """Return JSON as far as it arrives: null is NULL, strings without escapes, no outer blanks."""
    if text is None or text == "null":
        return None
    return repr(json.loads(text)) if text.startswith('"') else text.strip()


def check_types(driver: Driver) -> set[str]:
    """Copy values of every type and compare them. Return the types that the server lacks."""
    driver.database.execute(MADE)
    lacking = set()
    with driver.database.connect(options=SESSION, client_encoding="utf8") as connection:
        oracle = Oracle(connection)
        for number, kind in enumerate(EVERYTHING):
            if kind in LOST:
                continue
            if not fill(connection, number, kind):
                lacking.add(kind)
                continue
            rows = [
                oracle.encoder(f"public.source_{number}").encode(texts_)
                for texts_ in oracle.copied(f"public.source_{number}")
            ]
            copy(driver, f"target_{number}", rows)
            expected = texts(connection, f"source_{number}")
            found = texts(connection, f"target_{number}")
            if kind in JSON:
                expected = [(n, as_json(v), *rest) for n, v, *rest in expected]
                found = [(n, as_json(v), *rest) for n, v, *rest in found]
            assert found == expected, kind
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
            driver.deliver(*(gone(table[7:], key.decode()) for key in found))
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
