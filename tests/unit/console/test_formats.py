"""Texts for pages: numbers, times, payloads."""

from __future__ import annotations

import pytest

from transporter.console.formats import (
    MOST_SHOWN,
    bytes_text,
    count_text,
    head_text,
    iso_text,
    one_line,
    pretty_data,
    rate_text,
    short_count,
    visible,
)


@pytest.mark.parametrize(
    ("count", "whole", "short"),
    [
        (0, "0", "0"),
        (999, "999", "999"),
        (1_000, "1 000", "1 000"),
        (44_210, "44 210", "44.2 k"),
        (1_740_002, "1 740 002", "1.74 M"),
        (2_500_000_000, "2 500 000 000", "2.5 G"),
    ],
)
def test_counts_have_groups_of_three_digits(count: int, whole: str, short: str) -> None:
    """The space between them breaks no line."""
    assert count_text(count) == whole.replace(" ", "\u202f")
    assert short_count(count) == short.replace(" ", "\u202f")


@pytest.mark.parametrize(
    ("rate", "text"),
    [(0, "0/s"), (0.44, "0.4/s"), (9.96, "10.0/s"), (12.4, "12/s"), (2010, "2 010/s")],
)
def test_slow_rates_keep_a_decimal(rate: float, text: str) -> None:
    """Half an entry a second is not none."""
    assert rate_text(rate) == text.replace(" ", "\u202f")


def test_times_are_utc_with_milliseconds() -> None:
    """They end with Z, and a time outside the calendar is its number."""
    assert iso_text(1_000.1234) == "1970-01-01T00:16:40.123Z"
    assert iso_text(1e20) == "100000000000000000000 s"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ünïcode, 漢字 🎉", "plain, ünïcode, 漢字 🎉"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b[2J\x07\x00", r"\x1b[2J\x07\x00"),
        ("a\u202eb\u2066c\u200bd", r"a\u202eb\u2066c\u200bd"),
        ("\ud800", r"\ud800"),
        ("\u2028\u2029\r", r"\u2028\u2029\r"),
    ],
)
def test_letters_that_are_not_seen_are_escaped(text: str, shown: str) -> None:
    """What moves a cursor, turns the direction or has no width is a code; letters stay."""
    assert visible(text) == shown


def test_one_line_is_one_line_and_bounded() -> None:
    """Line ends become spaces, and a long text is cut with a sign of it."""
    assert one_line("a\n b\r\nc") == "a b c"
    assert one_line("abcdef", 4) == "abc…"
    assert one_line("abcd", 4) == "abcd"


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (None, "null"),
        (b"", ""),
        (b"text", "text"),
        (b"\xff\x00", "base64:/wA="),
        (
            b'{"a":[1,2.50,{}],"b":"\\u00e9"}',
            '{\n  "a": [\n    1,\n    2.50,\n    {}\n  ],\n  "b": "é"\n}',
        ),
        (b"12345678901234567890123", "12345678901234567890123"),
        (b"1e400", "1e400"),
        (b'{"a":', '{"a":'),
        (b"[" * 3_000, "[" * 3_000),
    ],
)
def test_data_are_shown_as_they_were_sent(data: bytes | None, shown: str) -> None:
    """JSON is indented, and no number loses a digit; anything else stays as it is."""
    assert pretty_data(data) == shown


@pytest.mark.parametrize(
    ("data", "most", "shown"),
    [
        (None, 3, "null"),
        (b"abc", 3, "abc"),
        (b"abcd", 3, "abc…"),
        ("aé漢".encode(), 5, "aé…"),
        ("🎉🎉".encode(), 7, "🎉…"),
        (b"\xff" * 8, 6, "base64:////////…"),
    ],
)
def test_the_head_of_data_cuts_no_letter(data: bytes | None, most: int, shown: str) -> None:
    """Text stays text, and bytes stay bytes, however much of them is shown."""
    assert head_text(data, most) == shown


def test_large_data_are_shown_in_part() -> None:
    """A page stays small, however large an entry is (Invariant 17)."""
    data = b'{"a": "' + b"x" * MOST_SHOWN + b'"}'
    assert pretty_data(data) == data[:MOST_SHOWN].decode() + "…"


def test_a_name_that_looks_like_a_number_stays_text() -> None:
    """Only numbers are shown without quotes."""
    assert pretty_data(b'{"1":"2"}') == '{\n  "1": "2"\n}'


def test_keys_are_text_or_base64() -> None:
    """Two keys are never shown alike because neither is text."""
    assert [bytes_text(each) for each in (None, b"k", b"\xff")] == ["null", "k", "base64:/w=="]


def test_indentation_makes_no_page_large() -> None:
    """JSON that would be long in lines is shown as it is."""
    bomb = b"[" * 300 + b",".join([b"1"] * 100_000) + b"]" * 300
    assert pretty_data(bomb) == bomb.decode()
    assert pretty_data(b'[1,{"a":[]},{"b":2.50}]') == (
        '[\n  1,\n  {\n    "a": []\n  },\n  {\n    "b": 2.50\n  }\n]'
    )
