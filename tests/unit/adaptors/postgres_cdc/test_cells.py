"""Columns cut out of messages: lengths of every size, and rows that are not usual."""

from __future__ import annotations

import pytest
from cdc_stream import row, xlog
from transporter_adaptors.postgres_cdc.cells import Cells


def insert(*cells: bytes | str | None) -> bytes:
    """Return the message of an inserted row."""
    return xlog(1, b"I\0\0\0\7N" + row(cells))


@pytest.mark.parametrize("largest", [0, 255, 256, 65_000, 65_536, 70_000, (1 << 24) - 1])
def test_texts_of_any_length(largest: int) -> None:
    """A text may be as long as three bytes can count, in rows with shorter ones and NULLs."""
    texts = [b"a" * largest, None, b"", b"b", b"c" * (largest // 2), None]
    cells = Cells([insert(b"before", text, b"behind") for text in texts], 3)
    assert cells.is_usual is None
    assert cells.column(0).to_pylist() == [b"before"] * len(texts)
    assert cells.column(1).to_pylist() == texts
    assert cells.column(2).to_pylist() == [b"behind"] * len(texts)


def test_other_rows_are_left_out() -> None:
    """Rows without a large value, of another number of columns, cut off, or too large are not."""
    usual, largest = insert(b"x", None), insert(b"x" * (1 << 24), None)
    others = [insert(b"x", "unchanged"), insert(b"x"), usual + b"n", usual[:-1], largest]
    messages = [usual, *(message for other in others for message in (other, usual))]
    cells = Cells(messages, 2)
    assert cells.is_usual is not None
    assert cells.is_usual.to_pylist() == [True, *[False, True] * len(others)]
    assert cells.column(0).to_pylist() == [b"x"] * (len(others) + 1)
    assert cells.column(1).null_count == len(others) + 1


def test_a_value_that_ends_beyond_the_last_message_is_an_error() -> None:
    """Then no place behind it can be trusted."""
    with pytest.raises(IndexError):
        Cells([insert(b"a" * 100, b"b")[:-60]], 2)


def test_rows_with_another_key_are_left_out() -> None:
    """Of updates with an old row those remain whose key is as before, which may be NULL."""
    pairs = [(b"1", b"1"), (b"1", b"2"), (None, None), (None, b"1"), (b"1", None), (b"", b"")]
    messages = [
        xlog(1, b"U\0\0\0\7O" + row([old, b"old"]) + b"N" + row([new, b"new"]))
        for old, new in pairs
    ]
    cells = Cells(messages, 2, has_old=True)
    cells.leave_out_changed([0])
    assert cells.is_usual is not None
    assert cells.is_usual.to_pylist() == [True, False, True, False, False, True]
    assert cells.column(0).to_pylist() == [b"1", None, b""]
    assert cells.column(1).to_pylist() == [b"new"] * 3
