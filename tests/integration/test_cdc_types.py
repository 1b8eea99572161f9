"""JSON made from the text of logical replication equals the server's ``row_to_json``."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING

import psycopg
import pytest
from cdc_oracle import SESSION, Oracle, inserted_rows
from cdc_values import ARRAY_LITERALS, HAVE_NO_VALUES, LITERALS, MADE, MADE_LITERALS
from hypothesis import given, settings
from hypothesis import strategies as st
from transporter_adaptors.postgres_cdc.json_text import TextError
from transporter_adaptors.postgres_cdc.types import TypeCatalog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.postgres import Database

pytestmark = pytest.mark.postgres

TABLE = """
CREATE DOMAIN public.domain_{n} AS {type};
CREATE DOMAIN public.array_{n} AS {type}[];
CREATE TYPE public.pair_{n} AS (v {type}, "a ""name\\" text);
CREATE DOMAIN public.domain_of_pairs_{n} AS public.pair_{n};
CREATE TYPE public.deep_{n} AS (p public.pair_{n}, ps public.pair_{n}[], d public.domain_{n});
CREATE TABLE public.t_{n} (
    n int, v {type}, a {type}[], grid {type}[], bounds {type}[], d public.domain_{n},
    ds public.domain_{n}[], da public.array_{n}, das public.array_{n}[],
    p public.pair_{n}, ps public.pair_{n}[], dp public.domain_of_pairs_{n},
    dps public.domain_of_pairs_{n}[], deep public.deep_{n}, deeps public.deep_{n}[]
)
"""
COMMON = """
    p, ARRAY[p, NULL, ROW(NULL, '')::public.pair_{n}], p, ARRAY[p]::public.domain_of_pairs_{n}[],
    ROW(p, ARRAY[p, p], v)::public.deep_{n}, ARRAY[ROW(p, '{{}}', NULL)::public.deep_{n}]
FROM (SELECT n, x::{type} AS v, ROW(x::{type}, x)::public.pair_{n} AS p
      FROM unnest(%s::text[]) WITH ORDINALITY AS u(x, n)) AS u
"""
INSERT = (
    """
INSERT INTO public.t_{n}
SELECT n, v, ARRAY[v], ARRAY[[[v, NULL], [NULL, v]], [[v, v], [v, NULL]]],
    ('[-1:0]=' || ARRAY[v, NULL]::text)::{type}[], v, ARRAY[v, NULL]::public.domain_{n}[],
    ARRAY[v, v], public.wrap(ARRAY[v, NULL]::text, 'public.array_{n}')::public.array_{n}[],"""
    + COMMON
)
EVERYTHING = {**LITERALS, **MADE_LITERALS}


@pytest.fixture
def oracle(postgres: Database) -> Iterator[Oracle]:
    """Open a session with the settings of the replication session."""
    postgres.execute(MADE)
    with postgres.connect(options=SESSION, client_encoding="utf8") as connection:
        yield Oracle(connection)


def fill(oracle: Oracle, values: dict[str, list[str]]) -> list[str]:
    """Create and fill a table for each type, and return their names."""
    for number, (kind, texts) in enumerate(values.items()):
        oracle.connection.execute(TABLE.format(n=number, type=kind))
        insert(oracle, number, kind, texts)
    return [f"public.t_{number}" for number in range(len(values))]


def insert(oracle: Oracle, number: int, kind: str, texts: list[str]) -> None:
    """Insert a row for each of *texts*, and one for NULL."""
    oracle.connection.execute(INSERT.format(n=number, type=kind), [[*texts, None]])


def test_every_type(oracle: Oracle) -> None:
    """Values of every type, in arrays, composites and domains, become the server's JSON."""
    values = {kind: texts for kind, texts in EVERYTHING.items() if supports(oracle, kind)}
    for table in fill(oracle, values):
        assert oracle.compare(table) > 0
    assert len(oracle.types) > 900
    assert oracle.values > 7_000


def supports(oracle: Oracle, kind: str) -> bool:
    """Return whether the server has values of the type *kind*. Some are built without XML."""
    try:
        oracle.connection.execute(f"SELECT '{EVERYTHING[kind][0]}'::{kind}")
    except psycopg.errors.FeatureNotSupported:
        return False
    return True


def test_the_stream(oracle: Oracle) -> None:
    """The text in the messages of pgoutput is the one that the rules are made for."""
    connection = oracle.connection
    connection.execute("CREATE PUBLICATION all_of_it FOR ALL TABLES")
    connection.execute("SELECT pg_create_logical_replication_slot('types', 'pgoutput')")
    try:
        values = {kind: texts for kind, texts in EVERYTHING.items() if supports(oracle, kind)}
        tables = fill(oracle, values)
        changes = "pg_logical_slot_get_binary_changes('types', NULL, NULL, {})".format(
            "'proto_version', '1', 'publication_names', 'all_of_it'"
        )
        with connection.cursor(binary=True) as cursor:
            rows = cursor.execute(f"SELECT data FROM {changes}").fetchall()
    finally:
        connection.execute("SELECT pg_drop_replication_slot('types')")
    found = inserted_rows([row[0] for row in rows])
    assert sorted(found) == sorted(tables)
    for table in tables:
        oracle.compare_texts(table, found[table])


def test_domains_over_arrays(oracle: Oracle) -> None:
    """A domain over an array is an array, and an array of it has arrays as elements."""
    for kind, texts in ARRAY_LITERALS.items():
        oracle.connection.execute(
            f"CREATE TABLE {kind}_in_table AS SELECT x::{kind} AS v,"
            f" public.wrap(x, '{kind}')::{kind}[] AS a FROM unnest(%s::text[]) AS x",
            [texts],
        )
        assert oracle.compare(f"{kind}_in_table") == 2 * len(texts)


def test_the_values_cover_every_type(oracle: Oracle) -> None:
    """No type of the server that a column can have is without values here."""
    query = (
        "SELECT typname FROM pg_type AS t WHERE typtype IN ('b', 'r', 'm') AND typisdefined"
        " AND typnamespace = 'pg_catalog'::regnamespace"
        " AND NOT EXISTS (SELECT FROM pg_type AS e WHERE e.typarray = t.oid)"
    )
    there = {row[0] for row in oracle.connection.execute(query)}
    covered = {
        row[0]
        for row in oracle.connection.execute(
            "SELECT typname FROM pg_type WHERE oid = ANY(%s::regtype[])", [list(LITERALS)]
        )
    }
    assert there - covered - {"oid8", "regdatabase"} == HAVE_NO_VALUES


def test_catalogs(oracle: Oracle) -> None:
    """The rows of the server's catalogs, which no test made, become the server's JSON."""
    query = (
        "SELECT c.oid::regclass::text FROM pg_class AS c WHERE relkind = 'r'"
        " AND relnamespace = 'pg_catalog'::regnamespace AND NOT EXISTS (SELECT FROM"
        " pg_attribute WHERE attrelid = c.oid AND atttypid = 'anyarray'::regtype)"
    )
    tables = [row[0] for row in oracle.connection.execute(query)]
    # In one snapshot, because autovacuum may be at work.
    with oracle.connection.transaction():
        oracle.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        for table in tables:
            oracle.compare(table)
    assert oracle.values > 50_000


CAST = """
CREATE FUNCTION public.mood_json({kind}) RETURNS json LANGUAGE sql AS $$
    SELECT '{{"m":1}}'::json $$;
CREATE CAST ({kind} AS json) WITH {how};
CREATE DOMAIN public.mood_domain AS {kind};
CREATE TYPE public.mood_pair AS (m {kind}[], n int);
CREATE TABLE public.moods AS SELECT 1 AS n, 'a'::{kind} AS m, ARRAY['a'::{kind}, NULL] AS a,
    'a'::public.mood_domain AS d, ROW(ARRAY['a'::{kind}], 1)::public.mood_pair AS p,
    ARRAY[ROW(ARRAY['a'::{kind}], 1)::public.mood_pair] AS ps
"""


@pytest.mark.parametrize(
    ("how", "is_used"), [("FUNCTION public.mood_json", True), ("INOUT", False)]
)
def test_casts_to_json(oracle: Oracle, how: str, is_used: bool) -> None:
    """A type with a cast that the server would use, at any depth, makes the column a string."""
    oracle.connection.execute(CAST.format(kind='public."mo od"', how=how))
    server = oracle.connection.execute("SELECT row_to_json(r)::text FROM public.moods AS r")
    ((document,),) = server.fetchall()
    assert document.count('{"m":1}') == (5 if is_used else 0)
    assert oracle.compare("public.moods") == 6
    catalog, columns = oracle.load("public.moods")
    casts = [catalog.casts_to_json(oid) for _, oid in columns]
    assert casts == [False, *[is_used] * 5]


def test_built_in_types_and_composites_have_no_used_casts(oracle: Oracle) -> None:
    """The server does not look for a cast of a composite type."""
    oracle.connection.execute(
        "CREATE FUNCTION public.single_json(public.single) RETURNS json LANGUAGE sql AS"
        " $$ SELECT '1'::json $$; CREATE CAST (public.single AS json)"
        " WITH FUNCTION public.single_json;"
        "CREATE TABLE public.singles AS SELECT ROW('a')::public.single AS s"
    )
    assert oracle.compare("public.singles") == 1
    catalog, ((_, oid),) = oracle.load("public.singles")
    assert not catalog.casts_to_json(oid)


def test_a_base_type_of_an_extension(oracle: Oracle) -> None:
    """Columns of a type that the server does not come with are strings, alone and in arrays."""
    oracle.connection.execute(
        "CREATE TYPE public.pairs;"
        "CREATE FUNCTION public.pairs_in(cstring) RETURNS public.pairs"
        " LANGUAGE internal IMMUTABLE STRICT AS 'textin';"
        "CREATE FUNCTION public.pairs_out(public.pairs) RETURNS cstring"
        " LANGUAGE internal IMMUTABLE STRICT AS 'textout';"
        "CREATE TYPE public.pairs"
        " (INPUT = public.pairs_in, OUTPUT = public.pairs_out, LIKE = text);"
        'CREATE TABLE public.h AS SELECT \'"a"=>"1"\'::public.pairs AS h,'
        " ARRAY['b=>NULL'::public.pairs] AS a"
    )
    assert oracle.compare("public.h") == 2
    assert b'{"h":"\\"a\\"' in oracle.expected("public.h")[0]


def test_a_type_that_is_gone(oracle: Oracle) -> None:
    """Values of a type that was dropped are strings; one that was not loaded is an error."""
    catalog = TypeCatalog()
    catalog.load(oracle.connection, [23, 4_000_000_000])
    assert catalog.rule(4_000_000_000)(b'a"') == rb'"a\""'
    assert not catalog.casts_to_json(4_000_000_000)
    with pytest.raises(LookupError, match="OID 25 was not loaded"):
        catalog.rule(25)


def test_an_altered_type(oracle: Oracle) -> None:
    """A later load shows new attributes; a value from before them is an error, not a guess."""
    ((oid,),) = oracle.connection.execute("SELECT 'public.single'::regtype::oid::int8")
    catalog = TypeCatalog()
    catalog.load(oracle.connection, [oid])
    assert catalog.rule(oid)(b"(a)") == b'{"one":"a"}'
    oracle.connection.execute("ALTER TYPE public.single ADD ATTRIBUTE two int")
    catalog.load(oracle.connection, [oid])
    assert catalog.rule(oid)(b"(a,2)") == b'{"one":"a","two":2}'
    with pytest.raises(TextError, match="has fewer values than the type's 2 attributes of now"):
        catalog.rule(oid)(b"(a)")


TEXT = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), max_size=12)
HOSTILE = st.text(st.sampled_from('"\\{}(),; \n\t\x01\x1f\x7fnNULl\u00e9'), max_size=8)
NUMBER = st.decimals(allow_nan=True, allow_infinity=True).filter(
    lambda number: not number.is_finite() or abs(int(number.as_tuple().exponent)) < 1000
)
OLD = st.datetimes(max_value=dt.datetime(4000, 1, 1))  # noqa: DTZ001 - it has no zone
RANDOM = {
    "text": TEXT | HOSTILE,
    "varchar": TEXT | HOSTILE,
    "bytea": st.binary(max_size=20).map(lambda value: f"\\x{value.hex()}"),
    "numeric": NUMBER.map(str).filter(lambda text: "sNaN" not in text and text != "-NaN"),
    "float8": st.floats().map(str),
    "float4": st.floats(width=32).map(str),
    "int8": st.integers(-(2**63), 2**63 - 1).map(str),
    "bool": st.sampled_from("tf"),
    "date": st.dates().map(str) | OLD.map(lambda value: f"{value.date()} BC"),
    "timestamp": st.datetimes().map(str),
    "timestamptz": OLD.map(lambda value: f"{value}+05:45 BC"),
    "interval": st.timedeltas().map(lambda value: f"{value.days} days {value.seconds}.5 s"),
    "uuid": st.uuids().map(str),
    "json": st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | HOSTILE,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(HOSTILE, inner, max_size=3),
    ).map(json.dumps),
    "box": st.tuples(*[st.floats()] * 4).map(lambda p: f"({p[0]},{p[1]}),({p[2]},{p[3]})"),
    "int4range": st.tuples(st.integers(-9, 0), st.integers(1, 9)).map(lambda r: f"[{r[0]},{r[1]})"),
}
"""Random input texts of common types."""
ROWS = st.sampled_from(sorted(RANDOM)).flatmap(
    lambda kind: st.tuples(st.just(kind), st.lists(RANDOM[kind], min_size=1, max_size=40))
)


def test_random_values(oracle: Oracle, exhaustive: bool) -> None:
    """Random values of common types, in arrays, composites and domains, become the same JSON."""
    numbers = {kind: number for number, kind in enumerate(RANDOM)}
    for kind, number in numbers.items():
        oracle.connection.execute(TABLE.format(n=number, type=kind))

    @settings(max_examples=2000 if exhaustive else 60, derandomize=not exhaustive, deadline=None)
    @given(ROWS)
    def compare(rows: tuple[str, list[str]]) -> None:
        kind, texts = rows
        texts = [text for text in texts if not ("02-29" in text and "BC" in text)]
        with oracle.connection.transaction(force_rollback=True):
            insert(oracle, numbers[kind], kind, texts)
            assert oracle.compare(f"public.t_{numbers[kind]}") >= 15

    compare()
