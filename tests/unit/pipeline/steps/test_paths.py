"""Paths as settings write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transporter.pipeline.steps.paths import EVERY, Path, parse_name, parse_path, path_text

PATHS: list[tuple[str, Path]] = [
    ("a", ("a",)),
    ("a.b.c", ("a", "b", "c")),
    ("a[0]", ("a", 0)),
    ("a.b[10].c", ("a", "b", 10, "c")),
    ("a[*].b", ("a", EVERY, "b")),
    ("a[0][*][2]", ("a", 0, EVERY, 2)),
    (r"a\.b.c", ("a.b", "c")),
    (r"a\[0\]", ("a[0]",)),
    (r"a\[0\][0]", ("a[0]", 0)),
    (r"a\\.b", ("a\\", "b")),
    (r"a\\[1]", ("a\\", 1)),
    ("0.1", ("0", "1")),
    ("*", ("*",)),
    (" a .b", (" a ", "b")),
    ("größe.😀", ("größe", "😀")),
    ("a\nb", ("a\nb",)),
]


@pytest.mark.parametrize(("text", "path"), PATHS)
def test_paths(text: str, path: Path) -> None:
    r"""A dot parts names, brackets count items, and a backslash makes either part of a name."""
    assert parse_path(text) == path
    assert path_text(path) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "a.", ".a", "a..b", "a\\", "\\a", "\ud800", "a" + ".a" * 32, "a" + "[0]" * 32),
        *("[0]", "[*]", "a[", "a]", "a[]", "a[-1]", "a[01]", "a[1", "a[x]", "a[ 1]", "a[1]b"),
        *("a.[0]", "a[0].", "a[1:2]", "a[**]", "a[9999999999]", "a[\u0661]"),
    ],
)
def test_what_is_no_path(text: str) -> None:
    """Empty names, unknown escapes, other brackets, half characters and endless paths are none."""
    with pytest.raises(
        ValueError, match=r"is not a path|has more than 32 parts|unpaired surrogate"
    ):
        parse_path(text)


@pytest.mark.parametrize("text", ["a.b", "a[0]", "a[*]"])
def test_a_new_name_is_no_path(text: str) -> None:
    """The new name of a field is one name, in which brackets and dots are escaped."""
    with pytest.raises(ValueError, match="is a path; write the new name only"):
        parse_name(text)
    assert parse_name(r"a\.b\[0\]") == "a.b[0]"


names = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(".\\[]*"), min_size=1)
parts = names | st.integers(0, 999_999_999) | st.just(EVERY)


@given(names, st.lists(parts, max_size=31))
def test_every_path_can_be_written(name: str, rest: list[str | int]) -> None:
    """A path of any names and items has a text that is read as the same path."""
    path = (name, *rest)
    assert parse_path(path_text(path)) == path
