"""Times given by users: ISO 8601, or an age."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

EPOCH: Final = datetime.fromtimestamp(0, UTC)


class ParsedTime(NamedTuple):
    """A time in µs UTC. ``local`` is the same in this machine's zone if the text named no zone."""

    microseconds: int
    local: datetime | None = None


def parse_time(text: str, now: datetime) -> ParsedTime:
    """Parse a time in ISO 8601, or an age such as ``10m`` before *now*.

    Raises:
        ValueError: it is neither. The message shows valid times.

    """
    try:
        time = datetime.fromisoformat(text)
        local = time.astimezone() if time.tzinfo is None else None
        return ParsedTime(max(0, microseconds(local or time)), local)
    except (ValueError, OverflowError, OSError):
        return ParsedTime(max(0, microseconds(now) - _parse_age(text)))


def microseconds(time: datetime) -> int:
    """Return *time* as µs UTC."""
    return (time - EPOCH) // timedelta(microseconds=1)


def _parse_age(text: str) -> int:
    """Parse an age such as ``10m`` or ``10m ago`` into microseconds."""
    from transporter.units import parse_duration  # noqa: PLC0415 - imports pydantic

    try:
        return round(parse_duration(text.removesuffix("ago").strip()) * 1e6)
    except ValueError as error:
        raise ValueError(
            "is neither an offset nor a time; use 1200, 10m, "
            "2030-01-31T08:00 or 2030-01-31T08:00:00+00:00"
        ) from error
