"""Hostile but valid JSON documents, and a naive reader that keeps every spelling."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

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


class Pairs(list[tuple[str, Any]]):
    """An object: names as they are spelt, and values."""


def tree(text: str) -> Any:
    """Return *text* as :class:`Pairs`, lists, and the text of all else, in the plainest way."""
    return _value(text, _behind_space(text, 0))[0]


def untree(value: Any) -> str:
    """Return the text of a value from :func:`tree`, without space."""
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{name}:{untree(each)}" for name, each in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(untree, value)) + "]"
    return str(value)


def _value(text: str, place: int) -> tuple[Any, int]:
    if text[place] == "{":
        return _several(text, place, Pairs(), _pair)
    if text[place] == "[":
        return _several(text, place, [], _value)
    end = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode(text, place)[1]
    return text[place:end], end


def _pair(text: str, place: int) -> tuple[Any, int]:
    name, end = _value(text, place)
    colon = _behind_space(text, end)
    value, end = _value(text, _behind_space(text, colon + 1))
    return (name, value), end


def _several(text: str, place: int, found: list[Any], read: Any) -> tuple[Any, int]:
    place = _behind_space(text, place + 1)
    while text[place] not in "}]":
        each, end = read(text, place)
        found.append(each)
        place = _behind_space(text, end)
        place = _behind_space(text, place + (text[place] == ","))
    return found, place + 1


def _behind_space(text: str, place: int) -> int:
    return place + len(text[place:]) - len(text[place:].lstrip(" \t\r\n"))
