r"""Values of every type that a column can have, each as its input text."""

from __future__ import annotations

from typing import Final

CONTROLS: Final = "".join(map(chr, range(1, 0x20))) + "\x7f\x80\x9f\u2028\ufeff"
TEXTS: Final = [
    *("", " ", "a", "NULL", "null", "Null", '"', "\\", "\\\\", '\\"', '"\\', "a\\", "''", "{", "}"),
    *(
        "{}",
        "{a,b}",
        "(",
        ")",
        "()",
        "(a,b)",
        ",",
        ";",
        "a,b",
        "a;b",
        " a",
        "a ",
        "a b",
        "[0:1]={}",
    ),
    *("\b\f\n\r\t\v", "\\b\\n", "\\N", "\\.", "\\u0041", "</script>", CONTROLS, "größe 鍵 😀 é"),
    *("x" * 3000, '"' * 50, "\\" * 51, "t", "true", "1", "+00", "a\u00a0b", "$1", "%s %(a)s {0}"),
]
_RANGES: Final = ["empty", "(,)"]
_FLOATS: Final = ["0", "-0", "1", "-1.5", "1e300", "1e-300", "123456789.123456789", "0.1", "1e15"]
_FLOATS += ["1e16", "100000", "1e-5", "0.0001", "5e-324", "1.7976931348623157e308"]
_SPECIAL: Final = ["NaN", "Infinity", "-Infinity"]
_DATES: Final = ["2024-02-29", "0001-01-01", "0044-03-15 BC", "4713-01-01 BC", "99999-12-31"]
_DATES += ["infinity", "-infinity", "1999-12-31"]
_STAMPS: Final = ["2024-02-29 12:34:56", "2024-02-29 12:34:56.789", "2024-01-01 00:00:00.000001"]
_STAMPS += ["0044-03-15 01:02:03 BC", "4713-01-01 00:00:00.5 BC", "294276-12-31 23:59:59.999999"]
_STAMPS += ["infinity", "-infinity", "12345-06-07 08:09:10"]
_NUMERICS: Final = ["0", "-0", "0.00", "1.50", "-1e-30", "1e40", "9" * 200 + "." + "1" * 200]
_NUMERICS += ["123456789012345678901234567890.1", *_SPECIAL]
_JSON: Final = [
    *("{}", "[]", "null", "true", '"a"', '"NULL"', '""', "1e5", "-0", "-0.0", " [ 1 , 2 ] "),
    *('{"a":1,"a":2}', '{ "b" : [ 1,\n\t2 ], "a":{} }', r'"\" \\ \b \n \u00e9 😀"', "1" * 60),
    *("\"a,b (c) {d} 'e'\"", '{"":{"":[[]]}}', "12345678901234567890.10"),
]

LITERALS: Final[dict[str, list[str]]] = {
    "bool": ["t", "f"],
    "int2": ["0", "-32768", "32767"],
    "int4": ["0", "-2147483648", "2147483647"],
    "int8": ["0", "-9223372036854775808", "9223372036854775807"],
    "numeric": _NUMERICS,
    "numeric(10,2)": ["1", "-0.005", "99999999.99", "NaN"],
    "float4": ["0", "-0", "0.1", "1e30", "1e-30", "16777217", "3.4028235e38", "1e-45", *_SPECIAL],
    "float8": [*_FLOATS, *_SPECIAL],
    "money": ["0", "-1.5", "1234567.89", "92233720368547758.07"],
    "text": TEXTS,
    "varchar": TEXTS,
    "varchar(5)": ["", "abc", "  ", '"\\,'],
    "bpchar": ["", "a ", "a\\ "],
    "char(6)": ["", "a", "a b", '"\\,', "é"],
    '"char"': ["", "a", " ", '"', "\\", ",", "(", "{"],
    "name": ["", "a", "A b", '"q"', "\\", "é" * 20],
    "bytea": ["", "\\x", "\\x00ff5c22", "abc"],
    "date": _DATES,
    "time": ["00:00", "24:00:00", "12:34:56.789", "23:59:59.999999"],
    "time(0)": ["12:34:56.789"],
    "timetz": ["00:00+00", "12:34:56.7+05:30", "01:02:03-15:59:59"],
    "timestamp": _STAMPS,
    "timestamp(3)": ["2024-01-01 00:00:00.1239"],
    "timestamptz": [*_STAMPS, "2024-06-01 12:00+05:30", "0001-01-01 00:00:00+12"],
    "interval": ["0", "1 year -2 mons 3 days -04:05:06.789", "-1 day", "100000 years", "0.5 s"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"],
    "json": _JSON,
    "jsonb": _JSON,
    "jsonpath": ["$", '$."a b"[*] ? (@ > "x\\\\")', "lax $.a"],
    "xml": ["", "<a/>", '<a b="c">\n\\ , ( {</a>', "text"],
    "bit(3)": ["000", "101"],
    "varbit": ["", "0", "10101"],
    "inet": ["1.2.3.4", "10.0.0.0/8", "::1", "fe80::1/64"],
    "cidr": ["10.0.0.0/8", "::/0"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "point": ["(1,2)", "(-0,1e300)", "(NaN,Infinity)"],
    "line": ["{1,2,3}"],
    "lseg": ["[(1,2),(3,4)]"],
    "box": ["(1,2),(3,4)", "(0,0),(0,0)"],
    "path": ["[(1,2),(3,4)]", "((1,2),(3,4))"],
    "polygon": ["((1,2),(3,4),(5,6))"],
    "circle": ["<(1,2),3>"],
    "tsvector": ["", "a:1 b:2A", "'it''s \"q\"' 'b\\\\c'"],
    "tsquery": ["a & b", "!'it''s' | b:*A", ""],
    "pg_lsn": ["0/0", "FFFFFFFF/FFFFFFFF"],
    "oid": ["0", "4294967295"],
    "xid": ["0", "4294967295"],
    "xid8": ["0", "18446744073709551615"],
    "cid": ["0", "7"],
    "tid": ["(0,1)", "(4294967295,65535)"],
    "int2vector": ["", "1", "1 -2 3"],
    "oidvector": ["", "1", "1 2 4294967295"],
    "regclass": ["pg_class", "pg_type"],
    "regtype": ["integer", '"char"', "timestamp with time zone", "text[]"],
    "regproc": ["now", "0"],
    "regprocedure": ["abs(integer)", "0"],
    "regoper": ["0", "||/"],
    "regoperator": ["+(integer,integer)", "0"],
    "regrole": ["pg_monitor", "0"],
    "regnamespace": ["pg_catalog", "0"],
    "regcollation": ['"C"', "0"],
    "regconfig": ["simple"],
    "regdictionary": ["simple"],
    "refcursor": ["", "a b", '"', "\\"],
    "aclitem": ["postgres=r*w/postgres", "=U/postgres"],
    "pg_snapshot": ["10:20:10,14,15"],
    "txid_snapshot": ["10:20:10,14,15"],
    "int4range": [*_RANGES, "[1,5)", "[1,)"],
    "int8range": [*_RANGES, "(1,9223372036854775806)"],
    "numrange": [*_RANGES, "[1.5,2.50]", "[-Infinity,NaN]"],
    "daterange": [*_RANGES, "[2024-01-01,infinity]", '["0044-03-15 BC",2024-01-01)'],
    "tsrange": [*_RANGES, '["2024-01-01 00:00",infinity]'],
    "tstzrange": [*_RANGES, '["2024-01-01 00:00+02",)'],
    "int4multirange": ["{}", "{[1,2),[5,)}"],
    "int8multirange": ["{}", "{(,)}"],
    "nummultirange": ["{}", "{[1.5,2.50]}"],
    "datemultirange": ["{}", "{[2024-01-01,2024-01-02)}"],
    "tsmultirange": ["{}", '{["2024-01-01 00:00","2024-01-02 00:00"]}'],
    "tstzmultirange": ["{}", '{["2024-01-01 00:00+02",)}'],
}
"""Input texts of each built-in type, some with a length or precision."""

HAVE_NO_VALUES: Final = {
    "gtsvector",
    "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
    "pg_dependencies",
    "pg_mcv_list",
    "pg_ndistinct",
    "pg_node_tree",
}
"""Types that take no input. Columns of them can only be NULL, except in catalogs."""

MADE: Final = """
CREATE TYPE public."mo od" AS ENUM ('', 'NULL', 'a', '"q"', 'b\\c', 'x,y', '(', '{', 'é 😀');
CREATE TYPE public.empty AS ();
CREATE TYPE public.textrange AS RANGE (subtype = text, multirange_type_name = textmultirange);
CREATE TYPE public."In ner" AS (a int, "b ""c\\" text, d bool[], e box[]);
CREATE TYPE public.single AS (one text);
CREATE TYPE public.outer AS (
    i public."In ner", n public."In ner"[], z public.empty, s public.single
);
CREATE TYPE public.dropped AS (a int, b int, c text);
ALTER TYPE public.dropped DROP ATTRIBUTE b;
ALTER TYPE public.dropped ADD ATTRIBUTE d timestamptz;
CREATE TABLE public.rows (id int, gone int, at timestamptz DEFAULT now(), j json);
ALTER TABLE public.rows DROP COLUMN gone;
CREATE DOMAIN public.positive AS numeric CHECK (VALUE > 0);
CREATE DOMAIN public.more AS public.positive CHECK (VALUE > 1);
CREATE DOMAIN public.boxes AS box[];
CREATE DOMAIN public.inners AS public."In ner"[];
-- An array of *element* with the value and NULL, for elements that ARRAY[] would merge.
CREATE FUNCTION public.wrap(value text, element regtype) RETURNS text LANGUAGE sql AS $$
    SELECT '{"'
        || regexp_replace(value, '(["\\\\])', '\\\\\\1', 'g')
        || '"' || typdelim::text || 'NULL}'
    FROM pg_catalog.pg_type WHERE oid = element
$$;
"""
MADE_LITERALS: Final[dict[str, list[str]]] = {
    'public."mo od"': ["", "NULL", "a", '"q"', "b\\c", "x,y", "(", "{", "é 😀"],
    "public.empty": ["()"],
    "public.textrange": ['["a ""b","c\\\\d"]', "empty", '["{","}")'],
    "public.textmultirange": ['{["a ""b","c\\\\d"]}', "{}"],
    'public."In ner"': [
        "(,,,)",
        '(1,"a ""b"" \\\\ c","{t,NULL,f}","{(1,2),(0,0);NULL}")',
        '(-5,"","{}","[3:3]={(1,2),(3,4)}")',
        '(7,NULL,"{{t,f},{f,t}}",{})',
    ],
    "public.single": ["()", '("")', "(NULL)", '("a\n,")'],
    "public.outer": ["(,,,)", '("(1,""x, \\""\\""y"",{t},)","{""(1,,,)"",NULL}","()","(""a b"")")'],
    "public.dropped": ["(1,x,)", "(,,2024-01-01)"],
    "public.rows": ['(1,"2024-01-01 00:00","{ ""a"" : 1}")', "(,,)"],
    "public.positive": ["1", "NaN"],
    "public.more": ["2.50"],
}
ARRAY_LITERALS: Final[dict[str, list[str]]] = {
    "public.boxes": ["{(1,2),(0,0);(3,4),(1,1)}", "{}", "[2:3]={NULL;NULL}"],
    "public.inners": ["{}", '{"(1,,,)",NULL}'],
}
"""Input texts of the types of :data:`MADE`, first of those that are no arrays."""
