"""Rewritten, kept and refused documents, against naive models."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from json_documents import documents

from transporter.pipeline.steps.fields import KEPT, TAKEN, make_fields
from transporter.pipeline.steps.json_edits import FieldTaken, apply_edits, edits_of
from transporter.pipeline.steps.json_grammar import NotJson, UnsupportedJson
from transporter.pipeline.steps.json_rewrite import Finder, Picker, Rewriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transporter.pipeline.steps.fields import Fields
    from transporter.pipeline.steps.paths import Path


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
    """Return the members that must be left, as written. An object on a path is its members."""
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
    """Return whether a new name is that of another field beside the old one."""
    members = [(json.loads(spelt), value) for spelt, value in split(text)]
    names = {name for name, _ in members}
    stay = {name for name in names if targets.get((name,)) is None}
    if any(path[0] in names and new in stay for path, new in targets.items() if len(path) == 1):
        return True
    for name, value in members:
        below = {path[1:]: new for path, new in targets.items() if path[0] == name and path[1:]}
        if below and value.startswith("{") and taken(value, below):
            return True
    return False


OMITTED: list[dict[Path, None]] = [
    dict.fromkeys(paths)
    for paths in (
        [("a",)],
        [("größe",)],
        [("s/t",)],
        [('q"',)],
        [("a", "b")],
        [("a", "b", "c")],
        [("a",), ("b",)],
        [("a",), ("a", "b")],
        [("a", "b"), ("b",), ("größe", "a")],
        [("a",), ("b",), ("c",), ("s/t",), ('q"',), ("größe",)],
    )
]
RENAMED: list[dict[Path, str]] = [
    {("a",): "new"},
    {("a",): "b"},
    {('q"',): "größe"},
    {("a", "b"): "a"},
    {("a",): "b", ("b",): "a"},
    {("a",): "b", ("b",): "c"},
    {("a",): "b", ("b", "a"): "s/t"},
    {("a",): "new", ("a", "a"): "new", ("b", "c"): 'q"'},
]
rewriters = [(targets, Rewriter(targets), make_fields(targets)) for targets in [*OMITTED, *RENAMED]]


@settings(max_examples=60, deadline=None)
@given(documents, st.sampled_from(rewriters))
def test_every_other_member_stays_as_it_was_written(
    text: str, case: tuple[dict[Path, str | None], Rewriter, Fields]
) -> None:
    """Rewritten documents match a naive model: byte for byte, in order."""
    targets, rewriter, looked_at = case
    if taken(text, targets):
        with pytest.raises(FieldTaken):
            rewriter(text.encode())
        return
    done = rewriter(text.encode())
    assert done == apply_edits(text.encode(), edits_of(text.encode(), looked_at))
    json.loads(done)
    expected = model(text, targets)
    assert shape(done.decode(), expected) == expected


def is_object(data: bytes) -> bool:
    """Return whether *data* is a JSON object by Python's own parser."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        return isinstance(json.loads(data.decode(), parse_constant=refuse), dict)
    except ValueError:
        return False


DAMAGE = [b"", b" ", b"NaN", b"\x00", b"\xff", *(bytes([byte]) for byte in b',:{}[]"\\0-.e')]
edits = st.tuples(st.integers(0, 60), st.integers(0, 3), st.sampled_from(DAMAGE))


def damaged(text: str, changes: list[tuple[int, int, bytes]]) -> bytes:
    """Return *text* with *changes* made to its bytes."""
    data = text.encode()
    for start, length, put in changes:
        data = data[:start] + put + data[start + length :]
    return data


@settings(max_examples=60, deadline=None)
@given(documents, st.lists(edits, max_size=2), st.sampled_from(rewriters[: len(OMITTED)]))
def test_json_is_what_a_strict_parser_takes(
    text: str,
    changes: list[tuple[int, int, bytes]],
    case: tuple[dict[Path, str | None], Rewriter, Fields],
) -> None:
    """Damaged documents are refused exactly if they are not JSON objects any more."""
    data = damaged(text, changes)
    _, rewriter, looked_at = case
    if is_object(data):
        assert rewriter(data) == apply_edits(data, edits_of(data, looked_at))
        return
    with pytest.raises(NotJson):
        edits_of(data, looked_at)
    try:
        assert rewriter(data) is data  # not looked at: it cannot hold any of the fields
        assert not any(json.dumps(name).encode() in data for name in looked_at.changes)
    except NotJson:
        pass


NAMES: list[list[Path]] = [
    [("a",)],
    [("b",), ("a",)],
    [("a",), ("b",), ("größe",)],
    [("a",), ("b",), ("c",), ('q"',)],
    [("a",), ("b",), ("c",), ('q"',), ("größe",)],
    [("none",)],
]
pickers = [(Picker(paths), make_fields(dict.fromkeys(paths, KEPT), only=True)) for paths in NAMES]
PATHS: list[Path] = [("a",), ("größe",), ("a", "b"), ("a", "b", "c"), ("a", 0)]
finders = [(Finder(path, check=True), make_fields({path: TAKEN})) for path in PATHS]


def told(look: Callable[[bytes], object], data: bytes) -> object:
    """Return the result of *look* for *data*, or the error with which it refuses that."""
    try:
        return look(data)
    except UnsupportedJson as error:
        return type(error)


@settings(max_examples=80, deadline=None)
@given(documents, st.lists(edits, max_size=1), st.sampled_from(pickers))
def test_a_few_fields_are_kept_as_the_walk_keeps_them(
    text: str, changes: list[tuple[int, int, bytes]], case: tuple[Picker, Fields]
) -> None:
    """The fast way keeps and refuses the same as the walk over all members, byte for byte."""
    picker, looked_at = case
    data = damaged(text, changes)
    assert told(picker, data) == told(
        lambda data: apply_edits(data, edits_of(data, looked_at)), data
    )


@settings(max_examples=80, deadline=None)
@given(documents, st.lists(edits, max_size=1), st.sampled_from(finders))
def test_values_are_found_as_the_walk_finds_them(
    text: str, changes: list[tuple[int, int, bytes]], case: tuple[Finder, Fields]
) -> None:
    """The fast way finds and refuses the same as the walk over all members."""
    finder, looked_at = case
    data = damaged(text, changes)
    expected = told(lambda data: [value for _, _, value in edits_of(data, looked_at)], data)
    assert told(finder, data) == expected
