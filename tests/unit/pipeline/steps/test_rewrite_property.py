"""Against naive models: what goes, what stays byte for byte, and what is JSON at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transporter.pipeline.steps.edits import FieldTaken, apply, edits_of
from transporter.pipeline.steps.fields import fields
from transporter.pipeline.steps.grammar import NotJson
from transporter.pipeline.steps.rewrite import Rewriter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transporter.pipeline.steps.fields import Path

NAMES = ["a", "b", "c", "größe", "s/t", 'q"']
SPELT = [
    *('"a"', '"b"', '"c"', '"größe"', '"s/t"', '"q\\""', '"\\u0061"', '"\\u0062"', '"s\\/t"'),
    *(
        '"q\\u0022"',
        '"gr\\u00f6\\u00dfe"',
        '"gr\\u00F6ße"',
        '"other"',
        '""',
        '"\\ud800"',
        '"x\\\\"',
    ),
]
NUMBERS = ["0", "-0", "1", "12345678901234567890", "12345678901234567890.10", "1e999", "-1.50E+3"]
spaces = st.sampled_from(["", "", "", " ", "\n  ", "\t\r"])
strings = st.sampled_from(
    [*SPELT, '"{"', '"]}"', '"\\\\"', '"a\\"a"', '",\\"a\\":1"', '"😀"', '"/"']
)
scalars = st.sampled_from([*NUMBERS, "true", "false", "null"]) | strings


@st.composite
def arrays(draw: Any, inner: st.SearchStrategy[str]) -> str:
    """Draw the text of an array."""
    items = draw(st.lists(st.tuples(spaces, inner, spaces).map("".join), max_size=3))
    return "[" + ",".join(items) + draw(spaces if not items else st.just("")) + "]"


@st.composite
def objects(draw: Any, inner: st.SearchStrategy[str]) -> str:
    """Draw the text of an object, with names that repeat and are spelt in many ways."""
    pair = st.tuples(spaces, st.sampled_from(SPELT), spaces, st.just(":"), spaces, inner, spaces)
    items = draw(st.lists(pair.map("".join), max_size=5))
    return "{" + ",".join(items) + draw(spaces if not items else st.just("")) + "}"


values = st.recursive(scalars, lambda inner: arrays(inner) | objects(inner), max_leaves=12)
buried = st.tuples(values, st.integers(0, 7)).map(lambda it: "[" * it[1] + it[0] + "]" * it[1])
documents = st.tuples(spaces, objects(buried | objects(values)), spaces).map("".join)
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(tuple)


def split(text: str, start: int = 0) -> list[tuple[str, str]]:
    """Return the members of an object as they are written, in the plainest way there is."""
    decoder = json.JSONDecoder(parse_int=str, parse_float=str)
    place, found = text.index("{", start) + 1, []
    while True:
        place += len(text[place:]) - len(text[place:].lstrip(" \t\r\n,"))
        if text[place] == "}":
            return found
        name_end = decoder.raw_decode(text, place)[1]
        value = text.index(":", name_end) + 1
        value += len(text[value:]) - len(text[value:].lstrip(" \t\r\n"))
        end = decoder.raw_decode(text, value)[1]
        found.append((text[place:name_end], text[value:end]))
        place = end


def model(text: str, targets: Mapping[Path, str | None]) -> list[tuple[str, Any]]:
    """Return the members that must be left, as written; an object on a path as its members."""
    found: list[tuple[str, Any]] = []
    for spelt, value in split(text):
        name = json.loads(spelt)
        if (name,) in targets and targets[name,] is None:
            continue
        below = {path[1:]: new for path, new in targets.items() if path[0] == name and path[1:]}
        new = targets.get((name,))
        key = spelt if new is None else json.dumps(new, ensure_ascii=False)
        walked = bool(below) and value.startswith("{")
        found.append((key, model(value, below) if walked else value))
    return found


def shape(text: str, expected: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the members of *text*, split as deeply as *expected* is."""
    members = split(text)
    deep = [len(expected) > n and isinstance(expected[n][1], list) for n in range(len(members))]
    return [
        (key, shape(value, expected[n][1]) if deep[n] else value)
        for n, (key, value) in enumerate(members)
    ]


def taken(text: str, targets: Mapping[Path, str | None]) -> bool:
    """Tell whether a new name is that of another field beside the old one."""
    members = [(json.loads(spelt), value) for spelt, value in split(text)]
    names = {name for name, _ in members}
    stay = {name for name in names if targets.get((name,)) is None}
    if any(path[0] in names and new in stay for path, new in targets.items() if len(path) == 1):
        return True
    return any(
        value.startswith("{")
        and taken(
            value,
            {
                path[1:]: new
                for path, new in targets.items()
                if path[0] == name != path[-1:] and path[1:]
            },
        )
        for name, value in members
    )


@settings(max_examples=400, deadline=None)
@given(documents, st.lists(paths, min_size=1, max_size=3))
def test_omit_leaves_every_other_member_as_it_was_written(text: str, gone: list[Path]) -> None:
    """What is left are the members that a naive model leaves, byte for byte and in order."""
    targets = dict.fromkeys(gone)
    done = Rewriter(targets)(text.encode())
    assert done == apply(text.encode(), edits_of(text.encode(), fields(targets)))
    expected = model(text, targets)
    json.loads(done)
    assert shape(done.decode(), expected) == expected


@settings(max_examples=400, deadline=None)
@given(
    documents,
    st.dictionaries(paths, st.sampled_from([*NAMES, "new"]), min_size=1, max_size=3).filter(
        lambda new: len({(*path[:-1], name) for path, name in new.items()}) == len(new)
    ),
)
def test_rename_changes_the_names_and_nothing_else(text: str, names: dict[Path, str]) -> None:
    """Every member keeps its place and its value; a name that is taken is refused."""
    names = {path: new for path, new in names.items() if path[-1] != new} or {("a",): "new"}
    rewriter = Rewriter(names)
    if taken(text, names):
        with pytest.raises(FieldTaken):
            rewriter(text.encode())
        return
    done = rewriter(text.encode())
    expected = model(text, names)
    assert shape(done.decode(), expected) == expected


def is_object(data: bytes) -> bool:
    """Tell whether *data* is a JSON object, as Python's own parser sees it."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        return isinstance(json.loads(data.decode(), parse_constant=refuse), dict)
    except ValueError:
        return False


edits = st.tuples(st.integers(0, 60), st.integers(0, 3), st.sampled_from(
    [b"", b",", b"}", b"{", b'"', b"\\", b"0", b"-", b".", b"e", b" ", b"\x00", b"\xff", b"NaN", b":", b"]", b"["]
))  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(documents, st.lists(edits, max_size=2))
def test_json_is_what_a_strict_parser_takes(
    text: str, changes: list[tuple[int, int, bytes]]
) -> None:
    """Of damaged documents exactly those are refused that are no JSON object any more."""
    data = text.encode()
    for start, length, put in changes:
        data = data[:start] + put + data[start + length :]
    for targets in ({("a",): None}, {("a", "b"): None}, {("a",): None, ("zz",): None}):
        try:
            edits_of(data, fields(targets))
            accepted = True
        except NotJson:
            accepted = False
        assert accepted == is_object(data)
        if not accepted and b'"a"' in data:
            with pytest.raises(NotJson):
                Rewriter(targets)(data)
