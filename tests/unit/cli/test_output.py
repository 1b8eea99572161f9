"""Output to the user's terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from transporter.cli.output import (
    align_columns,
    printable,
    problem_text,
    value_text,
    write_error,
    write_json,
    write_json_list,
    write_table,
)
from transporter.errors import ConfigError, EnvironmentFault
from transporter.pipeline.problems import InvalidPipeline

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 日本", "plain é 日本"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\u202egnp", "\\u202egnp"),
        ("\udcff", "\\udcff"),
        ("\x9b1m", "\\x9b1m"),
        (5, "5"),
    ],
)
def test_printable_escapes_what_a_terminal_would_obey(text: object, shown: str) -> None:
    """No control character, and no invisible one, is printed."""
    assert printable(text) == shown


def test_a_problem_is_one_line() -> None:
    """Lines of an error of another system are joined, and nothing is left that is unprintable."""
    text = "Connection refused\n\tIs the server running?  a\x1b\n"
    assert problem_text(text) == "Connection refused Is the server running?  a\\x1b"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "yes"),
        (False, "no"),
        (None, "none"),
        (0, "0"),
        ({"base64": "/w=="}, '{"base64": "/w=="}'),
        (["é"], '["é"]'),
    ],
)
def test_a_value_is_written_as_people_do(value: object, text: str) -> None:
    """No value appears as in a program."""
    assert value_text(value) == text


def test_an_indented_line_belongs_to_the_error_before(capsys: pytest.CaptureFixture[str]) -> None:
    """Only lines at the margin are marked, and SQL can be copied."""
    write_error(EnvironmentFault("refused\n\tIs it up?\nand more"), as_json=False)
    assert capsys.readouterr().err == "error: refused\n    Is it up?\nerror: and more\n"


def test_aligned_columns() -> None:
    """Columns are aligned, without blanks at the end of a line."""
    assert align_columns([["a", "bb", ""], ["ccc", "d", "e"]]) == ["a    bb", "ccc  d   e"]


def test_a_piped_table_is_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    """A table outside a terminal is aligned text with escaped cells."""
    write_table(["name", "size"], [["a\x1b", 1], ["bb", 22]])
    assert capsys.readouterr().out == "NAME   SIZE\na\\x1b  1\nbb     22\n"


def test_an_empty_table_has_its_head(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty table is printed with its header."""
    write_table(["name", "size"], [])
    assert capsys.readouterr().out == "NAME  SIZE\n"


def test_a_table_on_a_terminal_has_no_colours_with_no_color(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal rich draws the table, markup in a cell stays text, and NO_COLOR is obeyed."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    write_table(["name"], [["[red]x\x1b[0m"]])
    shown = capsys.readouterr().out
    assert "[red]x\\x1b[0m" in shown
    assert "─" in shown
    assert "\x1b[3" not in shown


def test_names_of_columns_are_text_as_cells_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heading that comes from data is neither markup nor a command to the terminal."""
    write_table(["a\x1b]0;x\x07"], [])
    assert capsys.readouterr().out == "A\\X1B]0;X\\X07\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    write_table(["b[/x]"], [["c"]])
    assert "b[/x]" in capsys.readouterr().out


def test_a_list_that_breaks_off_is_still_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever ends it is its error, with the exit code that a command would have."""

    def items() -> Iterator[int]:
        yield 1
        raise OSError(5, "Input/output error", "/x")

    assert write_json_list(items()) == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["result"], found["ok"]) == ([1], False)
    assert found["error"]["message"] == "/x: Input/output error"


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    """A result is wrapped once, and paths become text."""
    write_json({"dir": Path("/x"), "text": "\x1b"})
    out = capsys.readouterr().out
    assert json.loads(out) == {"ok": True, "result": {"dir": "/x", "text": "\x1b"}}
    assert out.count("\n") == 1
    assert "\x1b" not in out


def test_an_error_with_a_place_starts_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    """``file:line:`` is at the start of the line, once for each problem, as editors expect."""
    write_error(
        InvalidPipeline(ConfigError("a", "f", 1), ConfigError("b\x07", "f", 2)), as_json=False
    )
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "f:1: a\nf:2: b\\x07\n")


def test_an_error_without_a_place_says_that_it_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    """An error without a place begins with ``error:``."""
    write_error(EnvironmentFault("no Java"), as_json=False)
    assert capsys.readouterr().err == "error: no Java\n"


def test_an_error_as_json_holds_every_problem(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json an error is one object on stdout and nothing on stderr."""
    write_error(InvalidPipeline(ConfigError("a", "f", 1), ConfigError("b", "f", 2)), as_json=True)
    captured = capsys.readouterr()
    assert captured.err == ""
    assert json.loads(captured.out) == {
        "ok": False,
        "error": {
            "type": "InvalidPipeline",
            "message": "f:1: a\nf:2: b",
            "file": "f",
            "line": 1,
            "exit_code": 2,
            "problems": [
                {"message": "a", "file": "f", "line": 1},
                {"message": "b", "file": "f", "line": 2},
            ],
        },
    }
