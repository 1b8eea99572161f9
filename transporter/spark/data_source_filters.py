"""Filters that Spark pushes down: the range of the log they leave, and its rows. Pure functions.

A filter is accepted only when Arrow evaluates it exactly as Spark would. Spark applies all
others.
"""

from __future__ import annotations

from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
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
from transporter.log.time_spec import microseconds
from transporter.message import ENTRY_SCHEMA
from transporter.table.plan import OffsetBounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_TYPES: Final = {
    "offset": int,
    "logged_at": datetime,
    "timestamp": datetime,
    **dict.fromkeys(("namespace", "op", "phase", "source_id", "content_type"), str),
    "key": bytes,
}
"""Columns whose values can be compared, with the Python types of Spark's values."""
_NULLS: Final = (IsNull, IsNotNull)
_EQUALS: Final = (EqualTo, EqualNullSafe)
_ORDER: Final = (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
_TEXT: Final = (StringStartsWith, StringEndsWith, StringContains)


def can_evaluate(wanted: Filter, changed: frozenset[str]) -> bool:
    """Return whether Arrow evaluates *wanted* exactly. Columns *changed* differ from the log's."""
    negated = isinstance(wanted, Not)
    inner = wanted.child if negated else wanted
    name, *inside = getattr(inner, "attribute", None) or ("",)
    if inside or name not in ENTRY_SCHEMA.names or name in changed:
        return False
    if isinstance(inner, _NULLS):
        return True
    return name in _TYPES and _is_comparable(inner, _TYPES[name], negated=negated)


def _is_comparable(wanted: Any, kind: type, *, negated: bool) -> bool:  # noqa: ANN401 - pyspark is untyped
    if isinstance(wanted, In):
        # `x NOT IN (…, NULL)` is never true. Spark handles that case.
        return all(
            _is_of_type(value, kind) or (value is None and not negated) for value in wanted.value
        )
    ordered = isinstance(wanted, _ORDER) and kind in (int, datetime)
    textual = isinstance(wanted, _TEXT) and kind is str
    return (isinstance(wanted, _EQUALS) or ordered or textual) and _is_of_type(wanted.value, kind)


def _is_of_type(value: object, kind: type) -> bool:
    if isinstance(value, bytearray):
        return kind is bytes
    if isinstance(value, datetime):
        return kind is datetime and value.tzinfo is not None
    return isinstance(value, kind) and not isinstance(value, bool)


def bounds_of(filters: Iterable[Filter]) -> OffsetBounds:
    """Return the part of the log that holds every row that passes *filters*."""
    return reduce(OffsetBounds.intersect, map(_filter_bounds, filters), OffsetBounds())


def _filter_bounds(wanted: Any) -> OffsetBounds:  # noqa: ANN401 - pyspark is untyped
    if isinstance(wanted, (*_EQUALS, *_ORDER, In)):
        if wanted.attribute == ("offset",):
            return _offset_bounds(wanted)
        if wanted.attribute == ("logged_at",):
            return _time_bounds(wanted)
    return OffsetBounds()


def _offset_bounds(wanted: Any) -> OffsetBounds:  # noqa: ANN401 - pyspark is untyped
    if isinstance(wanted, In):
        offsets = tuple(sorted({value for value in wanted.value if value is not None}))
        first, last = (offsets[0], offsets[-1]) if offsets else (0, -1)
        return OffsetBounds(first=max(0, first), last=last, offsets=offsets)
    first, last = _range(wanted, wanted.value)
    return OffsetBounds(first=first, last=last)


def _time_bounds(wanted: Any) -> OffsetBounds:  # noqa: ANN401 - pyspark is untyped
    if isinstance(wanted, In):
        times = [microseconds(value) for value in wanted.value if value is not None]
        return (
            OffsetBounds(since=max(0, min(times)), until=max(times))
            if times
            else OffsetBounds(last=-1)
        )
    since, until = _range(wanted, microseconds(wanted.value))
    return OffsetBounds(since=since, until=until)


def _range(wanted: Any, value: int) -> tuple[int, int]:  # noqa: ANN401 - pyspark is untyped
    above = isinstance(wanted, GreaterThan)
    below = isinstance(wanted, LessThan)
    low = value + above if isinstance(wanted, (GreaterThan, GreaterThanOrEqual, *_EQUALS)) else 0
    high = value - below if isinstance(wanted, (LessThan, LessThanOrEqual, *_EQUALS)) else END
    return max(0, low), min(END, high)


def apply_filters(entries: pa.RecordBatch, filters: Iterable[Filter]) -> pa.RecordBatch:
    """Return those of *entries* that pass all of *filters*, each of which was accepted."""
    import pyarrow.compute as pc  # noqa: PLC0415 - takes 60 ms, and planning does not need it

    masks = [_mask(entries, wanted) for wanted in filters]
    return entries.filter(reduce(pc.and_, masks)) if masks and entries.num_rows else entries


def _mask(entries: pa.RecordBatch, wanted: Any) -> pa.BooleanArray:  # noqa: ANN401 - pyspark is untyped
    import pyarrow.compute as pc  # noqa: PLC0415 - see passing()

    if not isinstance(wanted, Not):
        return _test(entries.column(wanted.attribute[0]), wanted)
    column = entries.column(wanted.child.attribute[0])
    fails = pc.invert(_test(column, wanted.child))
    if isinstance(wanted.child, (*_NULLS, EqualNullSafe)):
        return fails
    # In SQL no value is unequal to null, either.
    return pc.and_(fails, column.is_valid())


def _test(column: pa.Array, wanted: Any) -> pa.BooleanArray:  # noqa: ANN401 - pyspark is untyped
    import pyarrow.compute as pc  # noqa: PLC0415 - see passing()

    if isinstance(wanted, _NULLS):
        return column.is_null() if isinstance(wanted, IsNull) else column.is_valid()
    if isinstance(wanted, In):
        values = [_cell(value) for value in wanted.value if value is not None]
        return pc.is_in(column, value_set=pa.array(values, column.type))
    if isinstance(wanted, _TEXT):
        return _text_test(wanted)(column, pattern=wanted.value)
    value = pa.scalar(_cell(wanted.value), column.type)
    found = _comparison(wanted)(column, value)
    return pc.fill_null(found, fill_value=False) if isinstance(wanted, EqualNullSafe) else found


def _cell(value: Any) -> Any:  # noqa: ANN401 - any type of column
    if isinstance(value, bytearray):
        return bytes(value)
    return microseconds(value) if isinstance(value, datetime) else value


def _comparison(wanted: Filter) -> Callable[..., Any]:
    import pyarrow.compute as pc  # noqa: PLC0415 - see passing()

    known: dict[type, Callable[..., Any]] = {
        GreaterThan: pc.greater,
        GreaterThanOrEqual: pc.greater_equal,
        LessThan: pc.less,
        LessThanOrEqual: pc.less_equal,
    }
    found: Callable[..., Any] = known.get(type(wanted), pc.equal)
    return found


def _text_test(wanted: Filter) -> Callable[..., Any]:
    import pyarrow.compute as pc  # noqa: PLC0415 - see passing()

    known: dict[type, Callable[..., Any]] = {
        StringStartsWith: pc.starts_with,
        StringEndsWith: pc.ends_with,
    }
    found: Callable[..., Any] = known.get(type(wanted), pc.match_substring)
    return found
