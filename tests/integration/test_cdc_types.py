"""Values of every type: the stream's text becomes the bytes that the server's own JSON has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from psycopg import sql
from pydantic import SecretStr
from transporter_adaptors.postgres_cdc.row_json import RowEncoder
from transporter_adaptors.postgres_cdc.session import connect_queries
from transporter_adaptors.postgres_cdc.types import TypeCatalog

if TYPE_CHECKING:
    from services.postgres import Database
    from transporter_adaptors.postgres.session import Connection

pytestmark = pytest.mark.postgres

DEFINITIONS: Final = '''
CREATE TYPE mood AS ENUM ('sad', 'very "happy"', 'comma, {brace}');
CREATE TYPE inner_pair AS (a int, "b ""q""" text);
CREATE TYPE outer_pair AS (p inner_pair, m mood, l inner_pair[], t timestamptz);
CREATE TYPE nothing AS ();
CREATE TYPE one AS (a text);
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN texts AS text[];
CREATE DOMAIN pair AS inner_pair;
'''
TEXTS: Final = (
    "", " ", "NULL", "null", "a,b", "{}", '"', "\\", '\\"', "\n\r\t\b\f", "\x01\x1f\x7f", "é😀",
    "(a)", "it's", "\u2028", "</script>", "a" * 3000,
)  # fmt: skip
OUTER: Final = (
    "ROW(ROW(1, 'x,y'), 'comma, {brace}', ARRAY[ROW(2, 'q \"z\" \\ ,()')::inner_pair, NULL, "
    "ROW(NULL, '')::inner_pair], '2024-01-01 00:00+00')::outer_pair"
)
VALUES: Final[dict[str, tuple[str | None, ...]]] = {
    "bool": ("t", "f"),
    "int2": ("0", "-32768", "32767"),
    "int4": ("0", "-2147483648"),
    "int8": ("9223372036854775807", "-9223372036854775808"),
    "numeric": ("0", "-0.00", "1e-30", "123456789012345678901234567890.123456789", "NaN",
                "Infinity", "-Infinity"),
    "numeric(12,4)": ("1.5", "-0"),
    "float4": ("0", "-0", "1e30", "1.1", "NaN", "Infinity", "-Infinity"),
    "float8": ("1e300", "1e-300", "-0", "0.1", "123456789.123456789", "1e15", "1e16", "NaN",
               "Infinity", "-Infinity"),
    "money": ("12.34", "-1000000"),
    "text": TEXTS,
    "varchar(3001)": TEXTS,
    "char(5)": ("", "a", "abcde", "\""),
    "name": ("", "na me"),
    '"char"': ("", "x", "\""),
    "bytea": ("", "\\x00ff"),
    "date": ("2024-02-29", "0044-03-15 BC", "infinity", "-infinity", "5874897-12-31"),
    "time": ("00:00", "23:59:59.999999", "24:00"),
    "timetz": ("12:00+02", "23:59:59.5-11:30"),
    "timestamp": ("2024-02-29 12:00", "0044-03-15 01:02:03.000001 BC", "infinity", "-infinity",
                  "294276-12-31 23:59:59.999999"),
    "timestamptz": ("2024-02-29 12:00+05:30", "0044-03-15 01:02:03 BC", "infinity", "-infinity"),
    "timestamp(0)": ("2024-01-01 00:00:00.9",),
    "interval": ("0", "1 year 2 mons -3 days 04:05:06.789", "-00:00:01"),
    "uuid": ("123E4567-e89b-12d3-a456-426614174000",),
    "json": ('{"a": 1, "a":  2}', "null", '"x"', " [1 , 2] "),
    "jsonb": ('{"b": 1, "a": [1.0, "\\u00e9"]}', "null", "1e3"),
    "inet": ("10.0.0.1/8", "::1"),
    "cidr": ("10.0.0.0/8",),
    "macaddr": ("08:00:2b:01:02:03",),
    "macaddr8": ("08:00:2b:01:02:03:04:05",),
    "bit(3)": ("101",),
    "varbit": ("", "1011"),
    "tsvector": ("'a':1 'b''c':2A",),
    "tsquery": ("'a' & !'b'",),
    "point": ("(1,2.5)",),
    "line": ("{1,2,3}",),
    "lseg": ("[(1,2),(3,4)]",),
    "box": ("(3,4),(1,2)",),
    "path": ("((1,2),(3,4))",),
    "polygon": ("((1,2),(3,4),(5,6))",),
    "circle": ("<(1,2),3>",),
    "oid": ("0", "4294967295"),
    "xid8": ("1",),
    "pg_lsn": ("16/B374D848",),
    "pg_snapshot": ("10:20:10,14",),
    "regclass": ("pg_class",),
    "int2vector": ("", "1 2 -3"),
    "oidvector": ("", "1 4294967295"),
    "int4range": ("[1,10)", "empty", "(,)"),
    "numrange": ("[1.5,2)",),
    "tstzrange": ('["2024-01-01 00:00+00",)',),
    "int4multirange": ("{[1,3),[5,7)}", "{}"),
    "mood": ("sad", 'very "happy"', "comma, {brace}"),
    "positive": ("1",),
    "texts": ('{a,"b c"}',),
    "pair": ('(1,"x y")', "(,)"),
    "inner_pair": ('(1,"a ""b"" \\\\ c")', "(,)", '(,"")'),
    "outer_pair": ("(,,,)", "=" + OUTER),
    "outer_pair[]": ("=ARRAY[" + OUTER + ", NULL]",),
    "nothing": ("()",),
    "one": ("()", '("")'),
    "int4[]": ("{}", "{1,NULL,-3}", "[0:1]={1,2}", "{{1,2},{3,4}}", "[2:2][0:1]={{1,2}}"),
    "text[]": ("{}", '{"",NULL,"NULL",null,"a,b","{}","\\"","\\\\"," x ",é}', '{{a},{"b\\\\c"}}'),
    "float8[]": ("{1.5,NaN,Infinity}",),
    "bool[]": ("{t,f,NULL}",),
    "timestamptz[]": ('{"2024-01-01 00:00+00",infinity}',),
    "jsonb[]": ('{"{\\"a\\": [1, 2]}",NULL}',),
    "box[]": ("{(1,1),(0,0);(3,3),(2,2)}",),
    "mood[]": ('{sad,"very \\"happy\\"","comma, {brace}"}',),
    "inner_pair[]": ('{"(1,\\"x y\\")","(,)"}',),
    "texts[]": ('{"{a,b}"}',),
    "positive[]": ("{1,2}",),
    "bytea[]": ('{"\\\\x00ff"}',),
}  # fmt: skip


def differences(queries: Connection, types: TypeCatalog, kind: str) -> list[tuple[str, bytes]]:
    """Return what is not as the server has it, of all values of one type and NULL.

    A value that begins with ``=`` is an expression.
    """
    queries.execute("DROP TABLE IF EXISTS public.given")
    queries.execute(f'CREATE TABLE public.given (n int, "a ""b" {kind})')  # type: ignore[call-overload]
    values = [*VALUES[kind], None]
    for number, value in enumerate(values):
        if value is not None and value.startswith("="):
            given = sql.SQL(value[1:])
        else:
            given = sql.SQL("{}::text::" + kind).format(sql.Literal(value))
        queries.execute(sql.SQL("INSERT INTO public.given VALUES ({}, {})").format(number, given))
    # As text by the output function, which the stream uses: a cast to text may differ.
    rows = queries.execute(
        "SELECT CASE WHEN n < %s THEN format('%%s', s.\"a \"\"b\") END, row_to_json(r)::text"
        ' FROM public.given s, LATERAL (SELECT s."a ""b") r ORDER BY n',
        [len(values) - 1],
    ).fetchall()
    (oid,) = queries.execute(
        "SELECT atttypid::bigint FROM pg_attribute"
        " WHERE attrelid = 'public.given'::regclass AND attnum = 2"
    ).fetchone() or (0,)
    types.load(queries, [oid])
    encoder = RowEncoder([('a "b', types.rule(oid))])
    found = []
    for text, expected in rows:
        made = encoder.encode([None if text is None else text.encode()])
        if made != expected.encode():
            found.append((expected, made))
    return found


def test_json_is_the_servers_own(postgres: Database) -> None:
    """Each value of each type comes out as ``row_to_json`` writes it."""
    with connect_queries(SecretStr(postgres.dsn)) as queries:
        queries.execute("SET search_path = public")
        queries.execute(DEFINITIONS)
        types = TypeCatalog()
        found = {kind: differences(queries, types, kind) for kind in VALUES}
    assert {kind: each for kind, each in found.items() if each} == {}


def test_a_cast_to_json_makes_a_column_text(postgres: Database) -> None:
    """The stream cannot run a cast of the type's own, so neither does the copy."""
    with connect_queries(SecretStr(postgres.dsn)) as queries:
        queries.execute("SET search_path = public")
        queries.execute(
            "CREATE TYPE odd AS ENUM ('x');"
            "CREATE FUNCTION odd_json(odd) RETURNS json LANGUAGE sql AS 'SELECT ''1''::json';"
            "CREATE CAST (odd AS json) WITH FUNCTION odd_json(odd);"
            "CREATE TYPE holder AS (o odd)"
        )
        kinds = ("odd", "odd[]", "holder", "text")
        rows = [queries.execute("SELECT %s::regtype::oid::bigint", [kind]) for kind in kinds]
        oids = [row.fetchone()[0] for row in rows]  # type: ignore[index]
        types = TypeCatalog()
        types.load(queries, oids)
    assert [types.is_text(oid) for oid in oids] == [True, True, True, False]
    assert types.rule(oids[1])(b"{x}") == b'"{x}"'


def test_a_type_that_is_gone_is_text(postgres: Database) -> None:
    """A type that was dropped since its value was written has no rule of its own."""
    with connect_queries(SecretStr(postgres.dsn)) as queries:
        types = TypeCatalog()
        types.load(queries, [99_999_999])
    assert types.rule(99_999_999)(b'a"b') == b'"a\\"b"'
