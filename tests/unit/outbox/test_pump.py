"""Tests of the load generator: its records, and its timing."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from transporter.outbox.pump import Load, LoadMeter, Pump

if TYPE_CHECKING:
    from transporter.outbox.record import Record


def test_every_key_is_counted_from_one() -> None:
    """The header seq of each key counts its records without a gap, over all transactions."""
    load = Load("r1", keys=3, records=50, rows=7)
    transactions = list(load.transactions(Random(5)))
    assert [len(each) for each in transactions] == [7] * 7 + [1]
    seen: dict[str, list[int]] = {}
    for record in (record for each in transactions for record in each):
        headers = dict(record.pairs)
        assert headers["run"] == "r1"
        assert record.topic == "pump"
        seen.setdefault(record.key, []).append(int(headers["seq"]))
    assert set(seen) == {"key-0", "key-1", "key-2"}
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in seen.values())


@pytest.mark.parametrize(("value_bytes", "expected"), [(200, 200), (1000, 1000), (0, 32)])
def test_values_are_json_of_the_size_asked_for(value_bytes: int, expected: int) -> None:
    """A value is a padded document, at least as large as its required fields."""
    load = Load("r", keys=1, records=1, value_bytes=value_bytes)
    ((record,),) = load.transactions(Random(1))
    assert record.value is not None
    assert len(record.value) == expected
    assert json.loads(record.value).items() >= {"key": "key-0", "seq": 1}.items()


def test_the_meter_tells_the_rate_since_the_last_reading() -> None:
    """The meter has the rate of the last interval and the mean of the whole time."""
    meter = LoadMeter(100.0, interval=5.0)
    assert meter.seconds_left(102.0) == 3.0
    first = meter.take_reading(50, 105.0)
    assert (first.rate, first.mean, first.seconds) == (10.0, 10.0, 5.0)
    second = meter.take_reading(250, 110.0)
    assert (second.rate, second.mean, second.rows) == (40.0, 25.0, 250)
    assert meter.seconds_left(110.0) == 5.0


class _Waiting(Pump):
    """A pump whose inserts take no time, by a clock that only its waits move."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(
            Mock(), "outbox", lambda _: None, lambda _: None, lambda: self.now, self._pass_time
        )

    def _pass_time(self, seconds: float) -> None:
        self.now += seconds

    def _insert(self, records: list[Record]) -> None:
        self.rows += len(records)


@pytest.mark.parametrize("rows", [20, 7, 1])
def test_a_load_takes_the_time_of_its_rate(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """The rate holds for the whole load, also if that is a single transaction."""
    monkeypatch.setattr("transporter.outbox.pump.require_table", lambda *_: None)
    total = _Waiting().run(Load("r", records=20, rows=rows, rate=20.0), Random(1))
    assert (total.rows, round(total.seconds, 6), round(total.mean, 6)) == (20, 1.0, 20.0)
