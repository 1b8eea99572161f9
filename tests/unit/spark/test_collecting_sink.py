"""Tests of Spark rows as JSON values: exact, and the same on every host."""

from __future__ import annotations

import time
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from transporter.spark.collecting_sink import json_value

if TYPE_CHECKING:
    from collections.abc import Iterator

INSTANT = 1_700_000_000_000_001


@pytest.fixture(params=["UTC", "Asia/Tokyo", "America/New_York"])
def _zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the host's time zone."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_zone")
def test_an_instant_is_told_in_utc() -> None:
    """An instant in the host's zone is converted to UTC, and a time without zone is unchanged."""
    instant = TimestampType().fromInternal(INSTANT)
    assert json_value(instant, TimestampType()) == "2023-11-14T22:13:20.000001+00:00"
    plain = datetime(2023, 11, 14, 22, 13)  # noqa: DTZ001 - as from Spark
    assert json_value(plain, TimestampNTZType()) == "2023-11-14T22:13:00"
    nested = StructType([StructField("at", ArrayType(TimestampType()))])
    assert json_value(([instant, None],), nested) == {
        "at": ["2023-11-14T22:13:20.000001+00:00", None]
    }


@pytest.mark.parametrize(
    ("value", "kind", "wanted"),
    [
        (None, LongType(), None),
        (2**62, LongType(), 2**62),
        (Decimal("1.50"), DecimalType(12, 2), "1.50"),
        (1.5, DoubleType(), 1.5),
        (float("nan"), DoubleType(), "nan"),
        (float("-inf"), DoubleType(), "-inf"),
        (bytearray(b"text"), BinaryType(), "text"),
        (bytearray(b"\xff"), BinaryType(), {"base64": "/w=="}),
        (date(2030, 1, 31), DateType(), "2030-01-31"),
        ({"a": None, "b": Decimal(2)}, MapType(StringType(), DecimalType()), {"a": None, "b": "2"}),
        (timedelta(hours=25), StringType(), "1 day, 1:00:00"),
    ],
)
def test_a_value_is_told_without_loss(value: Any, kind: DataType, wanted: object) -> None:
    """A value without an exact JSON form becomes text."""
    assert json_value(value, kind) == wanted
