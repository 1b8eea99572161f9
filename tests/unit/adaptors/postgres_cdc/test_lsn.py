"""Log sequence numbers as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transporter_adaptors.postgres_cdc.lsn import format_lsn, parse_lsn

MOST = (1 << 64) - 1


@pytest.mark.parametrize(
    ("lsn", "text"),
    [(0, "0/0"), (0x16B3748, "0/16B3748"), (1 << 32, "1/0"), (MOST, "FFFFFFFF/FFFFFFFF")],
)
def test_an_lsn_has_the_form_of_the_server(lsn: int, text: str) -> None:
    """The two halves are in hex, without leading zeros."""
    assert format_lsn(lsn) == text
    assert parse_lsn(text) == lsn


@given(st.integers(0, MOST))
def test_text_and_back(lsn: int) -> None:
    """Every LSN survives the way through its text, in both cases and with leading zeros."""
    text = format_lsn(lsn)
    high, _, low = text.partition("/")
    assert {parse_lsn(form) for form in (text, text.lower(), f"{high}/{low:0>8}")} == {lsn}


@pytest.mark.parametrize(
    "text",
    ["", "/", "0", "0/", "/0", "0/0/0", "0/16B3748\n", " 0/0", "0/123456789", "G/0", "-1/0", "٣/0"],
)
def test_other_text_is_refused(text: str) -> None:
    """Text in any other form is an error with an example."""
    with pytest.raises(ValueError, match="is not an LSN; use two hex numbers such as 0/16B3748"):
        parse_lsn(text)


@pytest.mark.parametrize("number", [-1, MOST + 1])
def test_other_numbers_are_refused(number: int) -> None:
    """A number that is negative or has more than 64 bits is an error."""
    with pytest.raises(ValueError, match="is not an LSN"):
        format_lsn(number)
