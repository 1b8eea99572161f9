"""Documents lose or rename fields, and keep every other byte."""

from __future__ import annotations

import re

import pytest

from transporter.pipeline.steps.fields import make_fields
from transporter.pipeline.steps.json_edits import FieldTaken, apply_edits, edits_of
from transporter.pipeline.steps.json_grammar import FLAT_DEPTH, MAX_DEPTH, NotJson, possessive
from transporter.pipeline.steps.json_rewrite import Rewriter
from transporter.pipeline.steps.paths import parse_path


def omit(data: bytes, *paths: str) -> bytes:
    """Return *data* without the fields at *paths*, done in both ways there are."""
    targets = dict.fromkeys(map(parse_path, paths))
    done = Rewriter(targets)(data)
    assert done == apply_edits(data, edits_of(data, make_fields(targets)))
    return done


def rename(data: bytes, **names: str) -> bytes:
    """Return *data* with fields renamed. ``__`` in a keyword stands for a dot."""
    targets = {parse_path(old.replace("__", ".")): new for old, new in names.items()}
    done = Rewriter(targets)(data)
    assert done == apply_edits(data, edits_of(data, make_fields(targets)))
    return done


OMITTED = [
    # a document, the paths to omit, and the remaining document
    (b'{"a":1}', ["a"], b"{}"),
    (b'{"a":1,"b":2}', ["a"], b'{"b":2}'),
    (b'{"a":1,"b":2}', ["b"], b'{"a":1}'),
    (b'{"a":1,"b":2,"c":3}', ["b"], b'{"a":1,"c":3}'),
    (b'{"a":1,"b":2,"c":3}', ["a", "b"], b'{"c":3}'),
    (b'{"a":1,"b":2,"c":3}', ["b", "c"], b'{"a":1}'),
    (b'{"a":1,"b":2,"c":3}', ["a", "c"], b'{"b":2}'),
    (b'{"a":1,"b":2,"c":3}', ["a", "b", "c"], b"{}"),
    (b"{}", ["a"], b"{}"),
    (b'{"b":2}', ["a"], b'{"b":2}'),
    # space is kept around kept fields
    (b' { "a" : 1 , "b" : 2 } ', ["a"], b' { "b" : 2 } '),
    (b' { "a" : 1 , "b" : 2 } ', ["b"], b' { "a" : 1  } '),
    (b'{\n  "a": 1,\n  "b": 2\n}\n', ["b"], b'{\n  "a": 1\n}\n'),
    (b'{\r\n\t"a": 1,\r\n\t"b": 2\r\n}', ["a", "b"], b"{\r\n\t\r\n}"),
    # numbers, order and duplicates of kept fields
    (b'{"n":12345678901234567890,"a":1}', ["a"], b'{"n":12345678901234567890}'),
    (b'{"a":1,"n":12345678901234567890.10}', ["a"], b'{"n":12345678901234567890.10}'),
    (b'{"n":-0.0e+10,"a":1e999,"m":1E5}', ["a"], b'{"n":-0.0e+10,"m":1E5}'),
    (b'{"z":1,"a":0,"b":2,"z":3}', ["a"], b'{"z":1,"b":2,"z":3}'),
    # every field of the name goes, however it is spelt
    (b'{"a":1,"b":2,"a":3}', ["a"], b'{"b":2}'),
    (b'{"ab":1,"a\\u0062":2,"\\u0061\\u0062":3,"c":4}', ["ab"], b'{"c":4}'),
    (b'{"a\\u0062":2}', ["ab"], b"{}"),
    (b'{"a\\/b":1,"a/b":2}', ["a/b"], b"{}"),
    (b'{"a\\"b":1,"a\\u0022b":2,"c":3}', ['a"b'], b'{"c":3}'),
    ('{"größe":1,"gr\\u00f6\\u00DFe":2,"ö":3}'.encode(), ["größe"], '{"ö":3}'.encode()),
    ('{"😀":1,"\\ud83d\\ude00":2,"c":"😀"}'.encode(), ["😀"], '{"c":"😀"}'.encode()),
    # nothing else of the name goes
    (b'{"b":"a","c":{"a":1},"d":["a",{"a":1}],"a":0}', ["a"],
     b'{"b":"a","c":{"a":1},"d":["a",{"a":1}]}'),
    (b'{"b":"\\"a\\":1","a":0}', ["a"], b'{"b":"\\"a\\":1"}'),
    (b'{"b":"\\\\","a":0}', ["a"], b'{"b":"\\\\"}'),
    (b'{"A":1," a":2,"aa":3,"":4,"a":0}', ["a"], b'{"A":1," a":2,"aa":3,"":4}'),
    # below
    (b'{"a":{"b":1,"c":2},"b":3}', ["a.b"], b'{"a":{"c":2},"b":3}'),
    (b'{"a":{"b":1}}', ["a.b"], b'{"a":{}}'),
    (b'{"a":{"b":{"c":1,"d":2}},"x":0}', ["a.b.c", "x"], b'{"a":{"b":{"d":2}}}'),
    (b'{"a":{"b":1},"a":{"b":2,"c":3}}', ["a.b"], b'{"a":{},"a":{"c":3}}'),
    (b'{"a":[{"b":1}],"c":null}', ["a.b", "c.b"], b'{"a":[{"b":1}],"c":null}'),
    (b'{"a":{"b":1}}', ["a", "a.b"], b"{}"),
    (b'{"a.b":1,"a":{"b":2}}', ["a\\.b"], b'{"a":{"b":2}}'),
    (b'{"a\\\\b":1,"c":2}', ["a\\\\b"], b'{"c":2}'),
    # values of every kind go
    (b'{"a":"}\\"],","b":1}', ["a"], b'{"b":1}'),
    (b'{"a":[[],{},[{"x":[1,2]}]],"b":1}', ["a"], b'{"b":1}'),
    (b'{"a":true,"b":false,"c":null,"d":-1.5e-3}', ["a", "c"], b'{"b":false,"d":-1.5e-3}'),
    # half a character is legal in JSON
    (b'{"b":"\\ud800","a":"\\udfff","\\ud800":1}', ["a"], b'{"b":"\\ud800","\\ud800":1}'),
]  # fmt: skip


@pytest.mark.parametrize(("document", "paths", "left"), OMITTED)
def test_omitted_fields_are_gone_and_nothing_else(
    document: bytes, paths: list[str], left: bytes
) -> None:
    """Exactly the named fields go, with one comma each."""
    assert omit(document, *paths) == left


def test_a_document_without_the_field_is_the_same_object() -> None:
    """A document with nothing to lose is not even copied, whether or not it was looked at."""
    for document in (b'{"b":1}', b'{"b":"a"}', b'{"b":{"a":1}}', b'{"b":"\\n"}', b"no JSON"):
        assert Rewriter({("a",): None})(document) is document


RENAMED: list[tuple[bytes, dict[str, str], bytes]] = [
    (b'{"a":1}', {"a": "b"}, b'{"b":1}'),
    (b'{ "a" : 1 , "c":2}', {"a": "b"}, b'{ "b" : 1 , "c":2}'),
    (b'{"a":1,"b":2}', {"a": "b", "b": "a"}, b'{"b":1,"a":2}'),
    (b'{"a":1,"b":2}', {"a": "b", "b": "c"}, b'{"b":1,"c":2}'),
    (b'{"a":1,"a":2}', {"a": "b"}, b'{"b":1,"b":2}'),
    (b'{"\\u0061":1,"c":"a"}', {"a": "b"}, b'{"b":1,"c":"a"}'),
    (b'{"a":{"a":1}}', {"a": "b"}, b'{"b":{"a":1}}'),
    (b'{"a":{"a":1}}', {"a": "b", "a__a": "c"}, b'{"b":{"c":1}}'),
    (b'{"a":{"x":1},"b":2}', {"a__x": "b"}, b'{"a":{"b":1},"b":2}'),
    (b'{"a":1}', {"a": 'q"\\ö\n'}, '{"q\\"\\\\ö\\n":1}'.encode()),
    (b'{"b":1}', {"a": "b"}, b'{"b":1}'),
    (b'{"a":12345678901234567890.10,"c":[]}', {"a": "b"}, b'{"b":12345678901234567890.10,"c":[]}'),
    (b'{"a":1,"b":2}', {"b": "c"}, b'{"a":1,"c":2}'),
]


@pytest.mark.parametrize(("document", "names", "expected"), RENAMED)
def test_renamed_fields_stay_in_their_place(
    document: bytes, names: dict[str, str], expected: bytes
) -> None:
    """Only the name changes. Several are renamed at once, so two can swap theirs."""
    assert rename(document, **names) == expected


@pytest.mark.parametrize(
    ("document", "names"),
    [
        (b'{"a":1,"b":2}', {"a": "b"}),
        (b'{"b":2,"a":1}', {"a": "b"}),
        (b'{"\\u0062":2,"a":1}', {"a": "b"}),
        (b'{"x":{"a":1,"b":2}}', {"x__a": "b"}),
        (b'{"a":1,"b":2,"c":3}', {"a": "b", "b": "c"}),
        (b'{"a":1,"b":{"c":2}}', {"a": "b", "b__c": "d"}),
    ],
)
def test_a_new_name_that_is_taken_is_refused(document: bytes, names: dict[str, str]) -> None:
    """No rename makes two fields of one name out of two."""
    with pytest.raises(FieldTaken, match=r"'.' cannot become '.': the object already has"):
        rename(document, **names)


BROKEN = [
    # (data, the expected syntax, at which byte)
    (b'"a"', "an object", 0),
    (b'["a"]', "an object", 0),
    (b'\xef\xbb\xbf{"a":1}', "an object", 0),
    (b'{"a"', "a field", 1),
    (b'{"a":', "a value", 5),
    (b'{"a":1', "a comma or the end", 6),
    (b'{"a":1,', "a comma or the end", 6),
    (b'{"a":1,}', "a comma or the end", 6),
    (b'{"a":1}}', "nothing more", 7),
    (b'{"a":1} {"b":2}', "nothing more", 7),
    (b'{"a":1}\0', "nothing more", 7),
    (b'{"a":NaN}', "a value", 5),
    (b'{"a":1,"b":NaN}', "a value", 11),
    (b'{"a":1,"b":-Infinity}', "a value", 11),
    (b'{"a":1,"b":01}', "a comma or the end", 12),
    (b'{"a":1,"b":1.}', "a comma or the end", 12),
    (b'{"a":1,"b":.5}', "a value", 11),
    (b'{"a":1,"b":+5}', "a value", 11),
    (b'{"a":1,"b":"\x01"}', "a value", 11),
    (b'{"a":1,"b":"\\x41"}', "a value", 11),
    (b'{"a":1,"b":"\\u12g4"}', "a value", 11),
    (b"{\"a\":1,'b':2}", "a comma or the end", 6),
    (b'{"a":1,"b":[1,]}', "a value", 14),
    (b'{"a":1,"b":[1 2]}', "a comma or the end", 13),
    (b'{"a":1,"b":{"c":1,}}', "a comma or the end", 17),
    (b'{"a":1,"b":{"c"}}', "a value", 11),
    (b'{"a":1,"b":tru}', "a value", 11),
    (b'{"a":1,"b":"\xff"}', "UTF-8", 12),
    (b'{"a":1,"b":"\xed\xa0\x80"}', "UTF-8", 12),
    ('{"a":1}'.encode("utf-16-le"), "a field", 1),
    ('{"a":1}'.encode("utf-16"), "UTF-8", 0),
    ('{"a":1}'.encode("utf-32-be"), "an object", 0),
]  # fmt: skip


@pytest.mark.parametrize(("data", "expected", "byte"), BROKEN)
def test_what_is_no_object_is_refused_at_its_byte(data: bytes, expected: str, byte: int) -> None:
    """Data that may hold the field but does not parse as an object is refused, with the place."""
    with pytest.raises(NotJson) as caught:
        Rewriter({("a",): None})(data)
    assert str(caught.value) == (f"data is not a JSON object: expected {expected} at byte {byte}")


def nested(depth: int, inner: bytes = b"0") -> bytes:
    """Return *inner* within *depth* objects and arrays by turns."""
    whole, half = divmod(depth, 2)
    opening = b'{"a":[ ' * whole + b'{"a":' * half
    closing = b" }" * half + b"]}" * whole
    return opening + inner + closing


@pytest.mark.parametrize("depth", [1, FLAT_DEPTH, FLAT_DEPTH + 1, 2 * FLAT_DEPTH, MAX_DEPTH - 1])
def test_values_may_be_nested(depth: int) -> None:
    """Values deeper than one expression can match are walked, and go or stay alike."""
    value = nested(depth)
    assert omit(b'{"x":1,"deep":' + value + b"}", "deep") == b'{"x":1}'
    assert omit(b'{"x":1,"deep":' + value + b"}", "x") == b'{"deep":' + value + b"}"
    assert omit(b'{"p":{"x":1,"deep":' + value + b"}}", "p.x") == b'{"p":{"deep":' + value + b"}}"


@pytest.mark.parametrize("bracket", [b"[", b'{"a":', b'{"a":['])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 10_000])
def test_deep_nesting_is_refused_and_exhausts_nothing(bracket: bytes, depth: int) -> None:
    """Data that is nested too deeply is refused, closed or not, at any depth."""
    assert omit(b'{"x":1,"deep":' + nested(MAX_DEPTH) + b"}", "x")
    data = b'{"x":1,"deep":' + bracket * depth
    closed = data + b"0" + (bracket * depth)[::-1].translate(bytes.maketrans(b"[{", b"]}"), b'a:"')
    for each in (data, closed + b"}"):
        with pytest.raises(NotJson, match=f"expected at most {MAX_DEPTH} levels"):
            omit(each, "x")


def test_a_document_of_a_hundred_thousand_fields() -> None:
    """Time and stack do not depend on how many fields there are, nor on how many go."""
    keys = b",".join(b'"k%d":%d' % (n, n) for n in range(100_000))
    assert omit(b"{" + keys + b',"a":1}', "a") == b"{" + keys + b"}"
    same = b",".join([b'"a": 1'] * 20_000)
    assert omit(b"{" + same + b"}", "a") == b"{}"
    assert omit(b"{" + b",".join([b'"a": {"b": 1}'] * 9_000) + b"}", "a.b").count(b"{}") == 9_000


def test_long_values_are_copied_as_they_are() -> None:
    """Neither a number of 10 000 digits nor a string of a megabyte is read as a value."""
    number, text = b"9" * 10_000, b"x\\n" * 400_000
    kept = b'{"n":%b,"t":"%b"' % (number, text)
    assert omit(kept + b',"a":1}', "a") == kept + b"}"
    assert omit(b'{"a":"%b","b":%b}' % (text, number), "a") == b'{"b":%b}' % number


HALF_REPEATED = [
    # a document that ends within a repetition, its error, and the byte
    (b'{"a":1,"b":[1,[2]x]}', "a comma or the end", 17),
    (b'{"a":1,"b":1.}', "a comma or the end", 12),
    (b'{"a":1,"b":1.5e}', "a comma or the end", 14),
    (b'{"a":1,"b":"\\u"}', "a value", 11),
    (b'{"a":1,"b":"\\n\\u12"}', "a value", 11),
    (b'{"a":1,"b":{"c":1,"d":tru}}', "a value", 22),
    (b'{"a":1,"b":{"c":[1],"d":"}', "a value", 24),
]


@pytest.mark.parametrize(("data", "expected", "byte"), HALF_REPEATED)
def test_what_repeats_ends_before_what_is_only_begun(data: bytes, expected: str, byte: int) -> None:
    """A repetition gives back all of an item that is not whole, unlike Python before 3.11.5."""
    with pytest.raises(NotJson) as caught:
        Rewriter({("a",): None})(data)
    assert str(caught.value) == f"data is not a JSON object: expected {expected} at byte {byte}"


def test_a_field_is_found_behind_those_that_are_passed_over() -> None:
    """The members before a field are passed whole, and the field itself not at all."""
    assert omit(b'{"b":1,"a":2,"c":3}', "a") == b'{"b":1,"c":3}'
    found = re.compile(possessive(b"ab?c")).match(b"acabcab")
    assert found is not None
    assert found[0] == b"acabc"


@pytest.mark.parametrize(
    "value",
    [
        b'"' + b"\\n" * 200_000 + b"\\u12",
        b"[" + b"1.5e3," * 200_000 + b"1.]",
        b"[" + b'[[1],{"a":["\\n"]}],' * 20_000 + b"[[1],tru]]",
        b"[[[[" + b"1.5," * 100_000 + b"1.]]]]",
        b'{"a":1,' + b'"k" : {"b":[1.5,"\\""]} ,' * 20_000 + b'"k":01}',
    ],
    ids=["escapes", "items", "rows", "deep", "members"],
)
def test_what_breaks_at_its_end_takes_linear_time(value: bytes) -> None:
    """No part of a long value that is broken at its very end is tried in a second way."""
    with pytest.raises(NotJson):
        omit(b'{"a":1,"x":' + value + b"}", "a")
