"""Paths that lead into arrays: items that go, stay or are found, byte for byte."""

from __future__ import annotations

import pytest

from transporter.pipeline.steps.json_edits import FieldTaken
from transporter.pipeline.steps.json_grammar import MAX_DEPTH, NotJson
from transporter.pipeline.steps.json_rewrite import Finder, Picker, Rewriter
from transporter.pipeline.steps.paths import parse_path


def omit(data: bytes, *paths: str) -> bytes:
    """Return *data* without the values at *paths*."""
    return Rewriter(dict.fromkeys(map(parse_path, paths)))(data)


def pick(data: bytes, *paths: str) -> bytes:
    """Return *data* with nothing but the values at *paths*."""
    return Picker(map(parse_path, paths))(data)


def find(data: bytes, path: str) -> list[bytes]:
    """Return the values at *path*."""
    return Finder(parse_path(path), check=True)(data)


OMITTED = [
    (b'{"a":[1,2,3]}', ["a[0]"], b'{"a":[2,3]}'),
    (b'{"a":[1,2,3]}', ["a[1]"], b'{"a":[1,3]}'),
    (b'{"a":[1,2,3]}', ["a[2]"], b'{"a":[1,2]}'),
    (b'{"a":[1,2,3]}', ["a[3]"], b'{"a":[1,2,3]}'),
    (b'{"a":[1,2,3]}', ["a[0]", "a[2]"], b'{"a":[2]}'),
    (b'{"a":[1,2,3]}', ["a[2]", "a[1]"], b'{"a":[1]}'),
    (b'{"a":[1,2,3],"b":[1]}', ["a[*]"], b'{"a":[],"b":[1]}'),
    (b'{"a":[ 1 , 2 ,\n 3 ] }', ["a[0]"], b'{"a":[ 2 ,\n 3 ] }'),
    (b'{"a":[ 1 , 2 ,\n 3 ] }', ["a[2]"], b'{"a":[ 1 , 2  ] }'),
    (b'{"a":[ 1 ] }', ["a[0]"], b'{"a":[  ] }'),
    (b'{"a":[ ]}', ["a[0]", "a[1]"], b'{"a":[ ]}'),
    (b'{"a":[[1,2],[3,4]]}', ["a[*][0]"], b'{"a":[[2],[4]]}'),
    (b'{"a":[[1,2],[3,4]]}', ["a[1][1]"], b'{"a":[[1,2],[3]]}'),
    (b'{"a":[{"b":1,"c":2},{"c":3},4,[{"b":5}]]}', ["a[*].b"],
     b'{"a":[{"c":2},{"c":3},4,[{"b":5}]]}'),
    (b'{"a":[{"b":[{"c":1.10,"d":1}]}],"x":0}', ["a[0].b[0].d", "x"],
     b'{"a":[{"b":[{"c":1.10}]}]}'),
    # a value of another type is not on the path
    (b'{"a":{"0":1,"*":2}}', ["a[0]", "a[1]"], b'{"a":{"0":1,"*":2}}'),
    (b'{"a":"[1]"}', ["a[0]"], b'{"a":"[1]"}'),
    (b'{"a":[1]}', ["a.0"], b'{"a":[1]}'),
    # every field of the name, however it is spelt, and both kinds at once
    (b'{"a":[1],"\\u0061":[2,3]}', ["a[0]"], b'{"a":[],"\\u0061":[3]}'),
    (b'{"a":[1,2],"a":{"b":3}}', ["a[0]", "a.b"], b'{"a":[2],"a":{}}'),
    (b'{"a[0]":1,"a":[2]}', ["a\\[0\\]"], b'{"a":[2]}'),
    # kept values keep their spelling, and their depth
    (b'{"a":["]","\\u00e9\\ud800",12345678901234567890,-0.0e+10,{"]":"["}, null]}', ["a[5]"],
     b'{"a":["]","\\u00e9\\ud800",12345678901234567890,-0.0e+10,{"]":"["}]}'),
    (b'{"a":[[[[[[[1]]]]]],2]}', ["a[1]"], b'{"a":[[[[[[[1]]]]]]]}'),
    (b'{"a":[[[[[[[1]]]]]],2]}', ["a[0]"], b'{"a":[2]}'),
    (b'{"a":[[[[[[[1, 2]]]]]]]}', ["a[0][0][0][0][0][0][1]"], b'{"a":[[[[[[[1]]]]]]]}'),
]  # fmt: skip


@pytest.mark.parametrize(("document", "paths", "left"), OMITTED)
def test_omitted_items_are_gone_and_nothing_else(
    document: bytes, paths: list[str], left: bytes
) -> None:
    """Exactly the named items, and fields of items, go, counted as the document had them."""
    assert omit(document, *paths) == left


RENAMED = [
    (b'{"a":[{"b":1},{"b":2,"c":3}]}', {"a[*].b": "x"}, b'{"a":[{"x":1},{"x":2,"c":3}]}'),
    (b'{"a":[{"b":1},{"b":2}]}', {"a[1].b": "x"}, b'{"a":[{"b":1},{"x":2}]}'),
    (b'{"a":[{"b":1}]}', {"a": "c", "a[0].b": "x"}, b'{"c":[{"x":1}]}'),
    (b'{"a":[{"b":1,"c":2}]}', {"a[*].b": "c", "a[*].c": "b"}, b'{"a":[{"c":1,"b":2}]}'),
]


@pytest.mark.parametrize(("document", "names", "expected"), RENAMED)
def test_fields_of_items_are_renamed(
    document: bytes, names: dict[str, str], expected: bytes
) -> None:
    """A rename leads into arrays as an omission does."""
    assert Rewriter({parse_path(path): new for path, new in names.items()})(document) == expected
    taken = Rewriter({parse_path("a[*].b"): "c"})
    with pytest.raises(FieldTaken):
        taken(b'{"a":[{"b":1},{"b":1,"c":2}]}')


PICKED = [
    (b'{"a":1,"b":2,"c":3}', ["a"], b'{"a":1}'),
    (b'{"a":1,"b":2,"c":3}', ["b"], b'{"b":2}'),
    (b'{"a":1,"b":2,"c":3}', ["c", "a"], b'{"a":1,"c":3}'),
    (b'{"a":1,"b":2,"c":3}', ["c", "b", "a", "z"], b'{"a":1,"b":2,"c":3}'),
    (b'{"a":1}', ["z"], b"{}"),
    (b"{ }", ["z"], b"{ }"),
    # space is kept around kept values
    (b' { "a" : 1 , "b" : 2 } ', ["a"], b' { "a" : 1  } '),
    (b' { "a" : 1 , "b" : 2 } ', ["b"], b' { "b" : 2 } '),
    (b'{\n  "a": 1,\n  "b": 2,\n  "c": 3\n}\n', ["b"], b'{\n  "b": 2\n}\n'),
    # spelling is kept
    (b'{"n":12345678901234567890.10,"a":1e999,"b":-0}', ["n", "b"],
     b'{"n":12345678901234567890.10,"b":-0}'),
    (b'{"\\u0061":"\\ud800\\/","b":1,"a":2}', ["a"], b'{"\\u0061":"\\ud800\\/","a":2}'),
    (b'{"\\u0062":1,"\\u0062":{"x":[[[[1]]]]}}', ["a"], b"{}"),
    ('{"ö":1,"größe":"ß"}'.encode(), ["größe"], '{"größe":"ß"}'.encode()),
    # below: the structure stays, the rest beside the field goes
    (b'{"a":{"b":1,"c":2},"d":3}', ["a.b"], b'{"a":{"b":1}}'),
    (b'{"a":{"c":2},"d":3}', ["a.b"], b'{"a":{}}'),
    (b'{"a":{"b":{"c":1,"d":2},"e":3},"f":4}', ["a.b.c", "f"], b'{"a":{"b":{"c":1}},"f":4}'),
    (b'{"a":{"b":1},"d":3}', ["a", "a.b"], b'{"a":{"b":1}}'),
    (b'{"a":{"b":1,"c":2},"a":{"c":3}}', ["a.b"], b'{"a":{"b":1},"a":{}}'),
    # a value that no path names never passes, even in the place of an object
    (b'{"a":"secret","d":3}', ["a.b", "d"], b'{"d":3}'),
    (b'{"a":[{"b":1}],"d":3}', ["a.b", "d"], b'{"d":3}'),
    (b'{"a":{"0":1},"d":3}', ["a[0]", "d"], b'{"d":3}'),
    (b'{"a":[1,{"b":2,"c":3},[{"b":4}]]}', ["a[*].b"], b'{"a":[{"b":2}]}'),
    # items
    (b'{"a":[1,2,3],"b":4}', ["a[1]"], b'{"a":[2]}'),
    (b'{"a":[ 1 , 2 , 3 ],"b":4}', ["a[2]", "a[0]"], b'{"a":[ 1 , 3 ]}'),
    (b'{"a":[1,2,3],"b":4}', ["a[7]"], b'{"a":[]}'),
    (b'{"a":[1,[2],{}],"b":4}', ["a[*]"], b'{"a":[1,[2],{}]}'),
    (b'{"a":[{"b":1,"c":2},{"c":3}]}', ["a[0].b", "a[1].b"], b'{"a":[{"b":1},{}]}'),
    (b'{"a":[1],"a":{"b":2,"c":3}}', ["a[0]", "a.b"], b'{"a":[1],"a":{"b":2}}'),
    # deep values go and stay alike
    (b'{"a":[[[[[[1]]]]]],"b":{"x":[[[[[2]]]]]},"c":3}', ["c"], b'{"c":3}'),
    (b'{"c":3,"a":[[[[[[1]]]]]],"b":{"x":[[[[[2]]]]]}}', ["c"], b'{"c":3}'),
    (b'{"a":[[[[[[1]]]]]],"c":3}', ["a"], b'{"a":[[[[[[1]]]]]]}'),
]  # fmt: skip


@pytest.mark.parametrize(("document", "paths", "left"), PICKED)
def test_picked_fields_stay_and_nothing_else(
    document: bytes, paths: list[str], left: bytes
) -> None:
    """Exactly the named fields and items stay, in the document's order and spelling."""
    assert pick(document, *paths) == left


def test_a_document_that_has_nothing_else_is_the_same_object() -> None:
    """A document with nothing to lose is not copied."""
    for document in (b'{"a":1}', b"{}", b' {"b":{"c":[1]}, "a":1}'):
        assert Picker([("a",), ("b", "c")])(document) is document


FOUND = [
    (b'{"a":1.10}', "a", [b"1.10"]),
    (b'{"a":1,"b":2,"a":"x"}', "a", [b"1", b'"x"']),
    (b'{"\\u0061":null}', "a", [b"null"]),
    (b'{"a":{"b":[1, 2]}}', "a.b", [b"[1, 2]"]),
    (b'{"a":{"b":[1, 2]}}', "a.b[1]", [b"2"]),
    (b'{"a":{"b":[1, 2]}}', "a.b[2]", []),
    (b'{"a":[{"b":1},{"c":2},{"b":{"b":3}},4]}', "a[*].b", [b"1", b'{"b":3}']),
    (b'{"a":[[1],[],[2,3]]}', "a[*][*]", [b"1", b"2", b"3"]),
    (b'{"b":{"a":1}}', "a", []),
    (b'{"b":1}', "a", []),
]


@pytest.mark.parametrize(("document", "path", "values"), FOUND)
def test_values_are_found_as_they_are_written(
    document: bytes, path: str, values: list[bytes]
) -> None:
    """Every value at a path is found, in order. A missing one is not an error."""
    assert find(document, path) == values


BROKEN = [b"", b"[1]", b"[]", b'"b"', b"x", b"{", b'{"b":NaN}', b'{"b":1}}', b'{"b":01}',
          b'{"b":"\xff"}', b'{"b":[1,]}', b"{'a':1}", b"\xef\xbb\xbf{}",
          b'{"b":' + b"[" * 10_000]  # fmt: skip


@pytest.mark.parametrize("data", BROKEN, ids=lambda data: repr(data[:12]))
def test_what_is_no_object_is_refused_though_it_cannot_hold_the_field(data: bytes) -> None:
    """Data that is not an object does not vanish as an object without the field."""
    with pytest.raises(NotJson):
        pick(data, "a")
    with pytest.raises(NotJson):
        find(data, "a")
    assert Finder(("a",), check=False)(data) == []  # it passes, and needs no look


def test_large_documents_take_no_stack_and_linear_time() -> None:
    """Many fields, many items and deep ones are refused or handled, in linear time."""
    keys = b",".join(b'"k%d":%d' % (n, n) for n in range(100_000))
    assert pick(b"{" + keys + b',"a":1}', "a") == b'{"a":1}'
    assert find(b"{" + keys + b',"a":1}', "k99999") == [b"99999"]
    items = b",".join(b'{"b":%d,"c":[]}' % n for n in range(30_000))
    assert omit(b'{"a":[' + items + b"]}", "a[*].b").count(b'{"c":[]}') == 30_000
    assert pick(b'{"a":[' + items + b"]}", "a[29999].b") == b'{"a":[{"b":29999}]}'
    assert len(find(b'{"a":[' + items + b"]}", "a[*].b")) == 30_000
    allowed = b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1)
    assert pick(b'{"x":%b,"a":1}' % allowed, "a") == b'{"a":1}'
    for depth in (MAX_DEPTH + 2, 10_000):
        deep = b'{"x":' + b"[" * depth + b"]" * depth + b',"a":[1]}'
        for act in (pick, omit, find):
            with pytest.raises(NotJson, match="expected at most 512 levels"):
                act(deep, "a[0]")
