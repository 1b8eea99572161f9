"""The output of entries, as text and as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from transporter.cli.entry_output import TABLE_ROWS, RowPrinter, entry_row, write_raw, write_rows
from transporter.cli.output import write_json_list
from transporter.control.entry_values import entry_json, time_text
from transporter.errors import Corrupt
from transporter.message import Entry, Message, messages_to_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTILE = "\x1b]0;owned\x07\x9b2J\u202e\r\n"


def test_a_row_is_harmless_and_short(capsys: pytest.CaptureFixture[str]) -> None:
    """An entry's line has no control characters, no line breaks and a bounded length."""
    message = Message(HOSTILE, HOSTILE.encode() * 50, HOSTILE.encode(), op=HOSTILE)
    RowPrinter().write(entry_row(Entry(7, 0, message), 6))
    shown = capsys.readouterr().out
    assert shown.startswith("7 unconfirmed  1970-01-01T00:00:00.000+00:00  \\x1b]0;owned")
    assert shown[:-1].isprintable()
    assert len(shown) < 2000


def test_a_value_is_told_whatever_its_bytes() -> None:
    """Text stays text, other bytes are base64, a missing value is null, and times are ISO 8601."""
    headers = (("h", None), ("h", b"\xff"))
    found = entry_json(Entry(3, 1_000, Message("n", b"\xff", None, headers=headers)), confirmed=3)
    assert (found["data"], found["key"]) == ({"base64": "/w=="}, None)
    assert found["headers"] == [["h", None], ["h", {"base64": "/w=="}]]
    assert (found["unconfirmed"], found["logged_at"]) == (False, "1970-01-01T00:00:00.001+00:00")


def test_a_time_that_no_calendar_has() -> None:
    """A timestamp outside the calendar is shown as a number."""
    assert time_text(2**62) == f"{2**62} µs"
    assert time_text(-1_000_000) == "1969-12-31T23:59:59.000+00:00"


def rows(count: int, error: bool = False) -> Iterator[tuple[str, ...]]:
    """Yield rows, and then an error if wanted."""
    for number in range(count):
        yield (str(number), "t", "n", "o", "k" * (number % 60), "d")
    if error:
        raise Corrupt("damaged")


@pytest.mark.parametrize("count", [0, 3, TABLE_ROWS - 1, TABLE_ROWS, 3 * TABLE_ROWS])
def test_rows_have_one_head(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Any number of rows has one header, and one line each."""
    write_rows(rows(count))
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["OFFSET", "LOGGED", "AT", "NAMESPACE", "OP", "KEY", "DATA"]
    assert [line.split()[0] for line in lines] == [str(number) for number in range(count)]


def test_many_rows_are_not_held(capsys: pytest.CaptureFixture[str]) -> None:
    """After the first rows each one is written before the next is read (Invariant 17)."""
    written = []

    def watched() -> Iterator[tuple[str, ...]]:
        for number, row in enumerate(rows(TABLE_ROWS + 5)):
            if number > TABLE_ROWS:
                written.append(len(capsys.readouterr().out.splitlines()))
            yield row

    write_rows(watched())
    assert written == [1 + TABLE_ROWS + 1, 1, 1, 1]


@pytest.mark.parametrize("count", [2, TABLE_ROWS + 2])
def test_what_came_before_an_error_is_shown(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Damage in the middle does not hide the entries before it."""
    with pytest.raises(Corrupt):
        write_rows(rows(count, error=True))
    assert len(capsys.readouterr().out.splitlines()) == count + 1


def test_raw_is_the_bytes_as_they_are(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Each entry's data is followed by a newline, and a tombstone is an empty line."""
    messages = [Message("n", b"\x1b[2J"), Message("n", None), Message("n", b"\xff\n")]
    write_raw([messages_to_batch(messages), messages_to_batch([])])
    import sys  # noqa: PLC0415 - the one that the test captures

    sys.stdout.flush()
    assert capfdbinary.readouterr().out == b"\x1b[2J\n\n\xff\n\n"


def test_a_list_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    """Items are written as they come, and together are one object."""
    for items in ([], [1], [1, {"a": "\x1b"}, None]):
        assert write_json_list(iter(items)) == 0
        out = capsys.readouterr().out
        assert json.loads(out) == {"ok": True, "result": items}
        assert (out.count("\n"), "\x1b" in out) == (1, False)


def test_an_error_behind_items_is_part_of_the_document(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """After items an error is part of the same document, which sets the exit code."""

    def items() -> Iterator[Any]:
        yield 1
        raise Corrupt("damaged", "f", 5, 6)

    assert write_json_list(items()) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["result"], found["error"]["type"]) == (False, [1], "Corrupt")


def test_an_error_before_items_is_as_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    """An error before the first item fails the command without output."""

    def items() -> Iterator[Any]:
        raise Corrupt("damaged")
        yield

    with pytest.raises(Corrupt):
        write_json_list(items())
    assert capsys.readouterr().out == ""
