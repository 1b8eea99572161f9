"""Types of a route's options besides its filter and its writer.

All of them are frozen and survive pickling.
"""

from __future__ import annotations

from collections.abc import Sized
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator

from transporter.units import Duration, Size, parse_duration

_Items = TypeVar("_Items", bound=Sized)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LARGEST: Final = 2**63 - 1
_DIGITS: Final = 19


class Model(BaseModel):
    """Base of a pipeline file's parts: unknown keys are errors, instances are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _refuse_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a whole number")  # noqa: TRY004 - pydantic reports ValueError
    return value


def _require_items(items: _Items) -> _Items:
    if not items:
        raise ValueError("needs at least one")
    return items


NotEmpty: Final = AfterValidator(_require_items)
"""The check that a list or mapping is not empty."""


def _check_text(text: str) -> str:
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("holds an unpaired surrogate")
    return text


Text = Annotated[str, AfterValidator(_check_text)]
"""Text of a message: it can be encoded as UTF-8."""

Count = Annotated[int, BeforeValidator(_refuse_boolean), Field(ge=1)]
"""A whole number from 1 on. YAML's ``true`` is not one."""

PositiveDuration = Annotated[Duration, Field(gt=0)]


class BackoffRange(NamedTuple):
    """Delays that double from *first* to *most*, in seconds."""

    first: float
    most: float


def parse_backoff(value: object) -> BackoffRange:
    """Return the bounds of ``200ms..30s``, or raise :class:`ValueError` for any other form."""
    if isinstance(value, BackoffRange):
        return value
    first, dots, most = value.partition("..") if isinstance(value, str) else ("", "", "")
    if not dots:
        raise ValueError("is not a range of durations; write for example 200ms..30s")
    found = BackoffRange(parse_duration(first.strip()), parse_duration(most.strip()))
    if not 0 < found.first <= found.most:
        raise ValueError("must begin above 0s and end with the longer delay")
    return found


class RetryConfig(Model):
    """The number of tries of an entry that fails alone, and the delays between them."""

    attempts: Count = 5
    backoff: Annotated[BackoffRange, PlainValidator(parse_backoff)] = BackoffRange(0.2, 30.0)


class ParkLimit(Model):
    """The most that may be parked before the route stops: entries, and bytes."""

    entries: Count = 10_000
    bytes: Annotated[Size, Field(ge=1)] = 256 * 1024**2


class StartPosition(NamedTuple):
    """The start of a route that has no progress yet.

    ``value`` is the offset of kind ``offset``, microseconds since the epoch (UTC) of kind ``time``,
    and 0 otherwise.
    """

    kind: Literal["earliest", "latest", "offset", "time"]
    value: int = 0


EARLIEST: Final = StartPosition("earliest")


def parse_start(value: object) -> StartPosition:
    """Parse ``earliest``, ``latest``, an offset or an ISO 8601 time.

    A time needs its zone, so that a file has one meaning on all machines. Raise
    :class:`ValueError` for any other form.
    """
    if isinstance(value, StartPosition):
        return value
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if text == "earliest":
        return EARLIEST
    if text == "latest":
        return StartPosition("latest")
    if not isinstance(text, str):
        raise ValueError("must be earliest, latest, an offset or a time")  # noqa: TRY004 - as above
    return (
        _parse_offset(text)
        if text.isdecimal() and text.isascii()
        else StartPosition("time", _parse_time(text))
    )


def _parse_offset(text: str) -> StartPosition:
    # Python refuses to read numbers of some thousand digits, with an error of its own.
    if len(text) > _DIGITS or int(text) > _LARGEST:
        raise ValueError("is above the largest offset")
    return StartPosition("offset", int(text))


def _parse_time(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(
            "must be earliest, latest, an offset or a time such as 2030-01-31T08:00:00Z"
        ) from error
    if time.tzinfo is None:
        raise ValueError("lacks a time zone; use for example 2030-01-31T08:00:00Z")
    return (time - _EPOCH) // _MICROSECOND


def _require_one(value: int) -> int:
    if value != 1:
        raise ValueError("must be 1; leave it out for no limit")
    return value


OnError = Literal["stop", "park", "skip"]
ParkOrder = Literal["key", "free"]
StartOption = Annotated[StartPosition, PlainValidator(parse_start)]
OneOrUnlimited = (
    Annotated[int, BeforeValidator(_refuse_boolean), AfterValidator(_require_one)] | None
)
WorkerMemory = Annotated[Size, Field(ge=128 * 1024**2)] | None


def waiting_circles(after: dict[str, str]) -> list[list[str]]:
    """Return each circle of routes that wait for one another. *after* maps each to the one ahead.

    A circle begins with its route that comes first in *after*.
    """
    circles: list[list[str]] = []
    seen: set[str] = set()
    for name in after:
        way: list[str] = []
        step = name
        while step in after and step not in seen:
            seen.add(step)
            way.append(step)
            step = after[step]
        if step in way:
            circles.append(way[way.index(step) :])
    return circles
