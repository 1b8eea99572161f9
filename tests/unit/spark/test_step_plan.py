"""Tests, without Spark, of the Arrow batches on the way into a query."""

from __future__ import annotations

import pyarrow as pa
import pytest
from frame_tools import entries

from transporter.spark.step_plan import is_text


@pytest.mark.parametrize("data", [b"", "grün €".encode(), "\U0001f69a".encode(), b"\x00"])
def test_what_is_utf_8_is_text(data: bytes) -> None:
    """A batch whose keys and data are all UTF-8 counts as text."""
    assert is_text(entries(3, at_1=data))


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xfe",
        b"\xc0\x80",  # two bytes for a one-byte character
        b"\xed\xa0\x80",  # half of a surrogate pair
        b"\xf4\x90\x80\x80",  # beyond Unicode
        b"gr\xc3",  # ends in the middle
    ],
)
def test_one_entry_that_is_no_text_is_seen(data: bytes) -> None:
    """A batch with bytes that are not UTF-8 for Spark does not count as text."""
    assert not is_text(entries(3, at_1=data))


def test_a_key_that_is_no_text_is_seen() -> None:
    """Keys are checked like data, and only the visible keys of a sliced batch."""
    batch = entries(3)
    place = batch.schema.get_field_index("key")
    keys = pa.array([b"a", None, b"\xff"], batch.schema.field(place).type)
    hostile = batch.set_column(place, batch.schema.field(place), keys)
    assert not is_text(hostile)
    assert is_text(hostile.slice(0, 2))
