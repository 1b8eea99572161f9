"""PostgreSQL's text of values becomes JSON, or an error that names the place."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transporter_adaptors.postgres_cdc.array_json import ArrayRule
from transporter_adaptors.postgres_cdc.entries import RowEncoder
from transporter_adaptors.postgres_cdc.json_text import (
    TextError,
    composite_rule,
    json_boolean,
    json_bytes,
    json_number,
    json_raw,
    json_string,
    json_timestamp,
    json_timestamptz,
    vector_rule,
)

TEXTS = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), max_size=20)
HOSTILE = TEXTS | st.text(st.sampled_from('"\\{}(),; \n\v\x01NULa'), max_size=8)
CELLS = st.none() | HOSTILE
NESTED = st.recursive(
    st.lists(CELLS, min_size=1, max_size=4),
    lambda inner: st.lists(inner, min_size=1, max_size=1),
    max_leaves=4,
)
STRINGS = ArrayRule("text[]", json_string)
NUMBERS = ArrayRule("float8[]", json_number)
UNCHANGED = object()


def array_text(cells: list | str | None, delimiter: str = ",") -> str:
    """Return *cells* as ``array_out`` writes them."""
    if cells is None:
        return "NULL"
    if isinstance(cells, list):
        return "{" + delimiter.join(array_text(cell, delimiter) for cell in cells) + "}"
    is_plain = (
        cells and cells.upper() != "NULL" and not set(cells) & set(f'{{}}"\\ \t\n\r\v\f{delimiter}')
    )
    return cells if is_plain else '"' + re.sub(r'(["\\])', r"\\\1", cells) + '"'


def record_text(values: list[str | None]) -> str:
    """Return *values* as ``record_out`` writes them."""
    cells = []
    for value in values:
        if value is None:
            cells.append("")
        elif value and not set(value) & set('(),"\\ \t\n\r\v\f'):
            cells.append(value)
        else:
            cells.append('"' + re.sub(r'(["\\])', r"\1\1", value) + '"')
    return "(" + ",".join(cells) + ")"


@given(st.binary())
def test_strings(text: bytes) -> None:
    """Quotes, backslashes and control characters are escaped, and nothing else."""
    short = {8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}
    expected = b"".join(
        short.get(byte) or (b"\\u%04x" % byte if byte < 32 else bytes([byte])) for byte in text
    )
    assert json_string(text) == b'"' + expected + b'"'


@pytest.mark.parametrize(
    ("rule", "text", "expected"),
    [
        (json_boolean, b"t", b"true"),
        (json_boolean, b"f", b"false"),
        (json_number, b"-0", b"-0"),
        (json_number, b"1e+300", b"1e+300"),
        (json_number, b"NaN", b'"NaN"'),
        (json_number, b"-Infinity", b'"-Infinity"'),
        (json_bytes, b"\\x00ff", b'"\\\\x00ff"'),
        (json_bytes, b"\\000", b'"\\\\000"'),
        (json_timestamp, b"2024-01-01 00:00:00", b'"2024-01-01T00:00:00"'),
        (json_timestamp, b"0044-03-15 00:00:00 BC", b'"0044-03-15T00:00:00 BC"'),
        (json_timestamp, b"infinity", b'"infinity"'),
        (json_timestamptz, b"2024-01-01 00:00:00.5+00", b'"2024-01-01T00:00:00.5+00:00"'),
        (json_timestamptz, b"0044-03-15 00:00:00+00 BC", b'"0044-03-15T00:00:00+00:00 BC"'),
        (json_timestamptz, b"2024-01-01 00:00:00+05:30", b'"2024-01-01T00:00:00+05:30"'),
        (json_timestamptz, b"2024-01-01 00:00:00-08", b'"2024-01-01T00:00:00-08:00"'),
        (json_timestamptz, b"-infinity", b'"-infinity"'),
        (vector_rule("int2vector", json_raw), b"", b"[]"),
        (vector_rule("int2vector", json_raw), b"1 -2", b"[1,-2]"),
        (STRINGS, b"{}", b"[]"),
        (STRINGS, b'{"",NULL,"NULL",a}', b'["",null,"NULL","a"]'),
        (STRINGS, b"[0:1][-5:-5]={{a},{b}}", b'[["a"],["b"]]'),
        (STRINGS, b"[1:0]={}", b"[]"),
        (NUMBERS, b"{1,-2.5e+10}", b"[1,-2.5e+10]"),
        (NUMBERS, b"{1,NULL,NaN}", b'[1,null,"NaN"]'),
        (ArrayRule("box[]", json_string, b";"), b"{(1,2),(0,0);NULL}", b'["(1,2),(0,0)",null]'),
        (composite_rule("none", []), b"()", b"{}"),
        (composite_rule("one", [("a", json_string)]), b"()", b'{"a":null}'),
        (
            composite_rule("two", [("a", json_raw), ("b", NUMBERS)]),
            b'(1,"{2,3}")',
            b'{"a":1,"b":[2,3]}',
        ),
    ],
)
def test_examples(rule: object, text: bytes, expected: bytes) -> None:
    """Each kind of value has the server's spelling."""
    assert rule(text) == expected  # type: ignore[operator]


@given(NESTED)
def test_arrays(cells: list) -> None:
    """Arrays of any depth keep every cell."""
    document = json.loads(STRINGS(array_text(cells).encode()))
    assert document == cells


@given(st.lists(CELLS, min_size=1))
def test_array_delimiters(cells: list) -> None:
    """Where the delimiter is another one, commas are part of the cells."""
    rule = ArrayRule("box[]", json_string, b";")
    assert json.loads(rule(array_text(cells, ";").encode())) == cells


@given(st.lists(CELLS, min_size=1), st.lists(st.lists(CELLS, min_size=1), min_size=1))
def test_composites(plain: list, nested: list) -> None:
    """Composites, composites in them and arrays of them keep every value."""
    inner = composite_rule("inner", [(f"c{n}", json_string) for n in range(len(plain))])
    names = [f'"{n}' for n in range(len(nested))]
    outer = composite_rule(
        "outer", [("i", ArrayRule("inner[]", inner)), *((n, STRINGS) for n in names)]
    )
    record = record_text(plain)
    text = record_text([array_text([record, None]), *(array_text(cells) for cells in nested)])
    document = json.loads(outer(text.encode()))
    one = {f"c{n}": value for n, value in enumerate(plain)}
    assert document == {"i": [one, None], **dict(zip(names, nested, strict=True))}


@pytest.mark.parametrize(
    ("text", "position"),
    [
        (b"", 0),
        (b"a", 0),
        (b"{", 1),
        (b"}", 0),
        (b"{a", 2),
        (b"{a,}", 3),
        (b"{,a}", 1),
        (b"{a,,b}", 3),
        (b"{a b}", 2),
        (b'{"a}', 1),
        (b'{"a"b}', 4),
        (b'{a"b"}', 2),
        (b"{a}b", 3),
        (b"{a}{b}", 3),
        (b"{{a},b}", 5),
        (b"{a,{b}}", 4),
        (b"{{}}", 2),
        (b"{a\\b}", 2),
        (b'{"a\\b"}', 1),
        (b"[0:1]", 0),
        (b"[0:1]=", 6),
        (b"[0:1={a}", 0),
    ],
)
def test_malformed_arrays(text: bytes, position: int) -> None:
    """The error names the type and the position, not the value."""
    with pytest.raises(TextError) as caught:
        STRINGS(text)
    assert (caught.value.type_name, caught.value.position) == ("text[]", position)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        (b"", 0),
        (b"a,b", 0),
        (b"(a", 1),
        (b"(a)", 3),
        (b"(a,b", 3),
        (b"(a,b,c)", 5),
        (b"(a,b))", 5),
        (b'("a,b)', 1),
        (b'("a"a,b)', 1),
        (b"(a a,b)", 1),
        (b'("\\a",b)', 1),
    ],
)
def test_malformed_composites(text: bytes, position: int) -> None:
    """A record with more or fewer values than attributes is an error, too."""
    with pytest.raises(TextError) as caught:
        composite_rule("pair", [("a", json_string), ("b", json_string)])(text)
    assert (caught.value.type_name, caught.value.position) == ("pair", position)


@given(HOSTILE.map(str.encode))
def test_any_text_is_json_or_an_error(text: bytes) -> None:
    """No text makes a rule return bytes that are not JSON."""
    pair = composite_rule("pair", [("a", json_string), ("b", STRINGS)])
    for rule in (STRINGS, NUMBERS, pair, ArrayRule("pair[]", pair)):
        try:
            found = rule(text)
        except TextError:
            continue
        json.loads(found)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (json_boolean, b"true"),
        (json_number, b""),
        (json_number, b"nan"),
        (composite_rule("none", []), b"(a)"),
        (vector_rule("oidvector", json_raw), b"{1}"),
    ],
)
def test_other_malformed_texts(rule: object, text: bytes) -> None:
    """Texts that the server never writes are errors."""
    with pytest.raises(TextError):
        rule(text)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([b"1", b"x", b"t"], b'{"a":1,"\\"b":"x","c":true}'),
        ([None, None, None], b'{"a":null,"\\"b":null,"c":null}'),
        ([UNCHANGED, b"x", None], b'{"\\"b":"x","c":null}'),
        ([UNCHANGED, None, UNCHANGED], b'{"\\"b":null}'),
        ([b"1", UNCHANGED, b"f"], b'{"a":1,"c":false}'),
        ([UNCHANGED] * 3, b"{}"),
    ],
)
def test_rows(values: list, expected: bytes) -> None:
    """NULL is null, and absent columns are left out."""
    columns = [("a", json_raw), ('"b', json_string), ("c", json_boolean)]
    assert RowEncoder(columns, UNCHANGED).encode(values) == expected


def test_an_empty_row() -> None:
    """A table may have no columns."""
    assert RowEncoder([]).encode([]) == b"{}"


def test_a_malformed_value_in_a_row() -> None:
    """The error names the column as well."""
    encoder = RowEncoder([("a", json_raw), ("tags", STRINGS)])
    with pytest.raises(TextError, match=r"column tags: .* type text\[\] is malformed at byte 2"):
        encoder.encode([b"1", b"{a"])
    with pytest.raises(ValueError, match="shorter"):
        encoder.encode([b"1"])
