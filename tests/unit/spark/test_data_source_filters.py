"""Tests of the filters accepted from Spark, their part of the log, and their rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from transporter.log.search import END
from transporter.message import Message, messages_to_batch, with_offsets
from transporter.spark.data_source_filters import apply_filters, bounds_of, can_evaluate
from transporter.table.plan import OffsetBounds

if TYPE_CHECKING:
    import pyarrow as pa

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OFFSET, NAMESPACE, KEY, DATA = ("offset",), ("namespace",), ("key",), ("data",)
LOGGED, TIME = ("logged_at",), ("timestamp",)


def at(microseconds: int) -> datetime:
    """Return a time."""
    return EPOCH + timedelta(microseconds=microseconds)


def entries() -> pa.RecordBatch:
    """Return offsets 10 to 13, the third without a key, the last without data."""
    messages = [
        Message("orders.a", b"x", b"k1", timestamp=1),
        Message("orders.b", b"y", b"k2", timestamp=2),
        Message("audit", b"z", None, timestamp=3),
        Message("audit.b", None, b"k1", op="delete", timestamp=4),
    ]
    return with_offsets(messages_to_batch(messages), 10, 500)


ROWS: list[tuple[Filter, list[int]]] = [
    (EqualTo(OFFSET, 11), [11]),
    (EqualNullSafe(OFFSET, 11), [11]),
    (GreaterThan(OFFSET, 11), [12, 13]),
    (GreaterThanOrEqual(OFFSET, 11), [11, 12, 13]),
    (LessThan(OFFSET, 11), [10]),
    (LessThanOrEqual(OFFSET, 11), [10, 11]),
    (In(OFFSET, [13, 10, None, 99]), [10, 13]),
    (Not(In(OFFSET, [13, 10])), [11, 12]),
    (Not(EqualTo(OFFSET, 11)), [10, 12, 13]),
    (LessThan(LOGGED, at(500)), []),
    (GreaterThan(TIME, at(2)), [12, 13]),
    (In(TIME, [at(1), at(4)]), [10, 13]),
    (StringStartsWith(NAMESPACE, "audit"), [12, 13]),
    (StringEndsWith(NAMESPACE, ".b"), [11, 13]),
    (StringContains(NAMESPACE, "s."), [10, 11]),
    (Not(StringEndsWith(NAMESPACE, ".b")), [10, 12]),
    (EqualTo(("op",), "delete"), [13]),
    (EqualTo(KEY, b"k1"), [10, 13]),
    (EqualTo(KEY, bytearray(b"k1")), [10, 13]),
    (Not(EqualTo(KEY, b"k1")), [11]),  # not the row without a key
    (Not(In(KEY, [b"k1"])), [11]),
    (Not(EqualNullSafe(KEY, b"k1")), [11, 12]),
    (IsNull(KEY), [12]),
    (Not(IsNull(KEY)), [10, 11, 13]),
    (IsNotNull(DATA), [10, 11, 12]),
]


@pytest.mark.parametrize(("wanted", "expected"), ROWS)
def test_the_rows_that_a_filter_leaves(wanted: Filter, expected: list[int]) -> None:
    """An accepted filter leaves the same rows as SQL."""
    assert can_evaluate(wanted, frozenset())
    found = apply_filters(entries(), [wanted])
    assert found.column("offset").to_pylist() == expected


def test_filters_are_joined() -> None:
    """A row must pass all filters."""
    found = apply_filters(entries(), [GreaterThan(OFFSET, 10), EqualTo(KEY, b"k1")])
    assert found.column("offset").to_pylist() == [13]


@pytest.mark.parametrize(
    "wanted",
    [
        EqualTo(("headers", "name"), "x"),
        EqualTo(("nope",), 1),
        EqualTo(DATA, b"x"),
        EqualTo(OFFSET, 1.5),
        EqualTo(OFFSET, True),  # noqa: FBT003 - a value
        EqualTo(LOGGED, datetime(2030, 1, 1)),  # noqa: DTZ001 - a time without a zone
        LessThan(NAMESPACE, "b"),
        GreaterThan(KEY, b"k"),
        StringContains(KEY, "k"),
        Not(In(OFFSET, [1, None])),
        Not(Not(IsNull(KEY))),
    ],
)
def test_filters_that_are_left_to_spark(wanted: Filter) -> None:
    """A filter on which Arrow may differ from Spark is not accepted."""
    assert not can_evaluate(wanted, frozenset())


def test_a_column_that_is_converted_is_left_to_spark() -> None:
    """A filter on a converted column is refused, because its text may be null for some bytes."""
    assert not can_evaluate(IsNotNull(DATA), frozenset({"data"}))
    assert not can_evaluate(EqualTo(KEY, "k1"), frozenset({"key"}))


BOUNDS: list[tuple[list[Any], OffsetBounds]] = [
    ([], OffsetBounds()),
    ([EqualTo(OFFSET, 5)], OffsetBounds(5, 5)),
    ([GreaterThan(OFFSET, 5), LessThan(OFFSET, 9)], OffsetBounds(6, 8)),
    ([GreaterThanOrEqual(OFFSET, 5), LessThanOrEqual(OFFSET, 9)], OffsetBounds(5, 9)),
    ([LessThan(OFFSET, -3)], OffsetBounds(0, -4)),
    ([In(OFFSET, [9, 3, None]), GreaterThan(OFFSET, 3)], OffsetBounds(4, 9, offsets=(3, 9))),
    ([In(OFFSET, [1, 2]), In(OFFSET, [2, 3])], OffsetBounds(2, 2, offsets=(2,))),
    ([In(OFFSET, [None])], OffsetBounds(0, -1, offsets=())),
    ([EqualTo(LOGGED, at(7))], OffsetBounds(since=7, until=7)),
    ([GreaterThan(LOGGED, at(7)), LessThan(LOGGED, at(9))], OffsetBounds(since=8, until=8)),
    ([In(LOGGED, [at(9), at(7)])], OffsetBounds(since=7, until=9)),
    ([Not(EqualTo(OFFSET, 5)), EqualTo(TIME, at(7)), IsNotNull(OFFSET)], OffsetBounds()),
]


@pytest.mark.parametrize(("filters", "expected"), BOUNDS)
def test_the_part_of_the_log_that_filters_leave(
    filters: list[Filter], expected: OffsetBounds
) -> None:
    """Filters on offsets and log times bound the read, and others and negations do not."""
    assert bounds_of(filters) == expected


def test_a_bound_never_leaves_out_a_row_that_passes() -> None:
    """All rows that pass a filter lie within its bounds."""
    whole = entries()
    for wanted, expected in ROWS:
        bounds = bounds_of([wanted])
        assert all(bounds.first <= offset <= bounds.last for offset in expected)
        assert bounds.offsets is None or set(expected) <= set(bounds.offsets)
    assert bounds_of([IsNull(KEY)]).last == END
    assert whole.num_rows == 4
