"""Omitted, kept, found and laid out values, against naive models over parsed documents."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from json_documents import Pairs, documents, tree, untree

from transporter.pipeline.steps.json_rewrite import Finder, Picker, Rewriter
from transporter.pipeline.steps.paths import Every, Path, parse_path
from transporter.pipeline.steps.pretty import make_formatter

Paths = set[Path]


def below(paths: Paths, part: str | int) -> Paths:
    """Return the rest of the paths that lead through *part*."""
    wanted = (part, Every.ITEM) if isinstance(part, int) else (part,)
    return {path[1:] for path in paths if path and path[0] in wanted}


def parts(value: list[Any]) -> list[tuple[Any, str | int, Any]]:
    """Return the spelling, the name or place, and the value of each member or item."""
    if isinstance(value, Pairs):
        return [(spelt, json.loads(spelt), each) for spelt, each in value]
    return [(None, place, each) for place, each in enumerate(value)]


def rebuilt(value: list[Any], left: list[tuple[Any, Any]]) -> list[Any]:
    """Return the items of *left* as a value of the kind of *value*."""
    return Pairs(left) if isinstance(value, Pairs) else [each for _, each in left]


def without(value: Any, paths: Paths) -> Any:
    """Return *value* without the values at *paths*."""
    if not isinstance(value, list) or not paths:
        return value
    members = [(spelt, below(paths, part), each) for spelt, part, each in parts(value)]
    left = [(spelt, without(each, rest)) for spelt, rest, each in members if () not in rest]
    return rebuilt(value, left)


def fits(value: Any, paths: Paths) -> bool:
    """Return whether *value* is named itself, or holds something that is."""
    if () in paths:
        return True
    names = any(isinstance(path[0], str) for path in paths)
    items = any(not isinstance(path[0], str) for path in paths)
    return names if isinstance(value, Pairs) else isinstance(value, list) and items


def kept(value: Any, paths: Paths) -> Any:
    """Return *value* with nothing but the values at *paths*."""
    if () in paths:
        return value
    members = [(spelt, below(paths, part), each) for spelt, part, each in parts(value)]
    left = [(spelt, kept(each, rest)) for spelt, rest, each in members if fits(each, rest)]
    return rebuilt(value, left)


def found(value: Any, paths: Paths) -> list[Any]:
    """Return the values at *paths*."""
    if () in paths:
        return [value]
    members = parts(value) if isinstance(value, list) else []
    return [one for _, part, each in members for one in found(each, below(paths, part))]


CASES = [
    [parse_path(text) for text in texts.split()]
    for texts in (
        "a",
        "a.b",
        "a[0]",
        "a[*]",
        "a[1].b a[0]",
        "a[*].a b[*][*] größe",
        "b[0][0] b[0][1].a b.a a",
        "a.a.a a.b[*].c c",
        's/t[*] q" other[2]',
        "a[*][*][*] b.b.b",
    )
]
rewriters = [(set(paths), Rewriter(dict.fromkeys(paths)), Picker(paths)) for paths in CASES]
finders = [(path, Finder(path, check=True)) for paths in CASES for path in paths]


@settings(max_examples=60, deadline=None)
@given(documents, st.sampled_from(rewriters))
def test_what_is_omitted_and_what_is_picked(
    text: str, case: tuple[Paths, Rewriter, Picker]
) -> None:
    """Both change the bytes as a naive model changes the parsed document, spelling included."""
    paths, omit, pick = case
    before = tree(text)
    assert tree(omit(text.encode()).decode()) == without(before, paths)
    assert tree(pick(text.encode()).decode()) == kept(before, paths)


@settings(max_examples=60, deadline=None)
@given(documents, st.sampled_from(finders))
def test_what_is_found(text: str, case: tuple[Path, Finder]) -> None:
    """The values at a path are those that a naive model finds, in order, as they are written."""
    path, find = case
    values = [tree(value.decode()) for value in find(text.encode())]
    assert values == found(tree(text), {path})


def naive(value: Any, indent: str, line: str = "\n") -> str:
    """Lay out a parsed value, as Python's own encoder does."""
    if not isinstance(value, list) or not value:
        return untree(value)
    opening, closing = "{}" if isinstance(value, Pairs) else "[]"
    inner = line + indent
    members = [
        (f"{spelt}: " if spelt else "") + naive(each, indent, inner)
        for spelt, _, each in parts(value)
    ]
    return opening + inner + f",{inner}".join(members) + line + closing


@settings(max_examples=60, deadline=None)
@given(documents, st.integers(0, 4))
def test_what_is_laid_out(text: str, indent: int) -> None:
    """Only the space changes, it is where it should be, and a second time changes nothing."""
    done = make_formatter(indent)(text.encode())
    assert done.decode() == (naive(tree(text), " " * indent) if indent else untree(tree(text)))
    assert make_formatter(indent)(done) is done


PLAIN = [{}, {"a": []}, {"a": {}, "b": [1, "x", {"c": None}, [[]]], "c": {"d": True}}]


@pytest.mark.parametrize("indent", [1, 2, 10])
@pytest.mark.parametrize("value", PLAIN)
def test_the_layout_is_that_of_the_usual_encoder(value: dict[str, Any], indent: int) -> None:
    """The layout is that of indented JSON in Python and JavaScript."""
    assert (
        make_formatter(indent)(json.dumps(value).encode())
        == json.dumps(value, indent=indent).encode()
    )
