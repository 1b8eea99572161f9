"""Strict YAML with lines."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transporter.errors import ConfigError
from transporter.pipeline.problems import InvalidPipeline
from transporter.pipeline.yaml_document import MAX_BYTES, parse, read, scalar_value

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("on", "on"),
        ("12", 12),
        ("-1", -1),
        ("017", 17),
        ("0o17", 15),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".inf", math.inf),
        ("-.Inf", -math.inf),
        ("2020-01-01", "2020-01-01"),
        ("12:30:45", "12:30:45"),
        ("9" * 400, "9" * 400),
    ],
)
def test_plain_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    """Only the nulls, booleans and numbers of YAML 1.2 are such."""
    assert scalar_value(text) == value
    assert type(scalar_value(text)) is type(value)


def test_quoted_scalars_are_text() -> None:
    """Quotes and blocks keep a scalar a text."""
    root = parse("a: '1'\nb: \"true\"\nc: |\n  2\nd: 3\n", "f", {}).root
    assert root == {"a": "1", "b": "true", "c": "2\n", "d": 3}


def test_every_key_path_knows_its_line() -> None:
    """A key has the line of the key, an item that of its start, an unknown path its parent's."""
    document = parse("a: 1\nlist:\n  - x: 1\n    y:\n      2\n  - z\n", "f", {})
    paths = [(), ("a",), ("list",), ("list", 0), ("list", 0, "y"), ("list", 1), ("list", 0, "no")]
    assert [document.line(path) for path in paths] == [1, 1, 2, 3, 4, 6, 3]


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", 1, "is empty"),
        ("# only a comment\n", 1, "is empty"),
        ("a: 1\nb: 2\na: 3\n", 3, r"duplicate key 'a' \(first on line 1\)"),
        ("a: {b: 1, b: 2}", 1, "duplicate key 'b'"),
        ("a: &x 1\n", 1, "anchors"),
        ("a: 1\nb: *x\n", 2, "anchors"),
        ("a: 1\n<<: {b: 1}\n", 2, "merge keys"),
        ("a: !!python/object:os.system x\n", 1, "tags"),
        ("a: ! x\n", 1, "tags"),
        ("? [1, 2]\n: 3\n", 1, "a key must be text"),
        ("a: 1\n---\nb: 2\n", 2, "second document"),
        ("%YAML 1.1\n---\na: yes\n", 2, "another version"),
        ("a: [1\nb: 2\n", 2, "is not YAML"),
        ("a:\n\t- 1\n", 2, "is not YAML.*; indent by blanks"),
        (
            "a:\n  b: 1\n c: 2\n",
            3,
            r"is not YAML: the line is indented as none .*in the part that begins in line 1\)",
        ),
        ("a: b: 1\n", 1, "is not YAML.*a text with a colon needs quotes"),
        (
            'a: 1\nb: "x\n',
            3,
            r"a quote or a bracket is not closed .in the part that begins in line 2\)",
        ),
        ("a: 1\nb: \x07\n", 2, "is not YAML"),
        ("a: 'open\n", 2, "is not YAML"),
        ("a: " + "[" * 40 + "]" * 40, 1, "nested more than"),
    ],
)
def test_refuses_with_the_line(text: str, line: int, problem: str) -> None:
    """Each text that strict YAML does not allow is one error with its line."""
    with pytest.raises(ConfigError, match=problem) as caught:
        parse(text, "f.yaml", {})
    assert (caught.value.file, caught.value.line) == ("f.yaml", line)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "bomb",
    [
        "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
        "[" * 100_000,
        "{a: " * 50_000,
        "- " * 100_000,
        "? " * 100_000,
    ],
)
def test_bombs_are_refused_quickly(bomb: str) -> None:
    """Text that would unfold or nest without end is refused before it does."""
    started = time.monotonic()
    with pytest.raises(ConfigError):
        parse(bomb, "f", {})
    assert time.monotonic() - started < 5


def test_variables_are_text_whatever_they_hold() -> None:
    """The setting decides the meaning of a variable: a password keeps its zeros."""
    document = parse("a: ${N}\nb: '${N}'\nc: [x, 'p ${N}']\nd: $${N}\n", "f", {"N": "0123"})
    assert document.root == {"a": "0123", "b": "0123", "c": ["x", "p 0123"], "d": "${N}"}
    assert document.substituted == {("a",), ("b",), ("c", 1)}


def test_variables_cannot_add_structure() -> None:
    """A value is put in after parsing, so it cannot bring keys of its own."""
    assert parse("a: ${X}", "f", {"X": "1\nb: 2"}).root == {"a": "1\nb: 2"}


def test_every_unset_variable_is_told_at_once() -> None:
    """Each unset variable is a problem with its own line."""
    with pytest.raises(InvalidPipeline) as caught:
        parse("a: ${X}\nb: 1\nc:\n  - ${Y:?say why}\n", "f", {})
    assert [(each.line, each.problem[:27]) for each in caught.value.problems] == [
        (1, "environment variable X is n"),
        (4, "environment variable Y is n"),
    ]


def test_redact_blots_out_values_of_variables() -> None:
    """No text keeps a value that came from outside the file."""
    document = parse("a: x${LONG}y ${SHORT}", "f", {"LONG": "hunter22", "SHORT": "a"})
    assert document.redact("bad hunter22 and a") == "bad *** and a"
    assert "hunter22" not in repr(document)


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        (b"a: 1\nb: \xff\n", 2, "not UTF-8"),
        (b"#" * (MAX_BYTES + 1), 0, "is larger than"),
    ],
)
def test_read_refuses_other_files(tmp_path: Path, content: bytes, line: int, problem: str) -> None:
    """A file that is not a short UTF-8 text is refused by name."""
    file = tmp_path / "x.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=problem) as caught:
        read(file, {})
    assert (caught.value.file, caught.value.line) == (str(file), line)


def test_read_says_why_a_file_cannot_be_read(tmp_path: Path) -> None:
    """A missing file and a folder are configuration errors."""
    with pytest.raises(ConfigError, match="No such file"):
        read(tmp_path / "none.yaml", {})
    with pytest.raises(ConfigError, match="Is a directory"):
        read(tmp_path, {})


def test_read_skips_a_byte_order_mark(tmp_path: Path) -> None:
    """An editor's byte order mark is not a part of the first key."""
    file = tmp_path / "x.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read(file, {}).root == {"a": 1}


@given(
    st.text(alphabet=st.sampled_from("ab:-? []{}'\"|>&*!%#@,\n\t\\$~<.0é\x85\ufeff"), max_size=40)
)
@example("? a\n? b")
@example("%YAML 9.9\n--- a")
@example('"\\ud800"')
def test_any_text_parses_or_is_refused(text: str) -> None:
    """No text makes the parser fail in any other way than with a ConfigError."""
    try:
        parse(text, "f", {})
    except ConfigError as error:
        problem = error.problem
    else:
        problem = ""
    assert problem.isprintable()
