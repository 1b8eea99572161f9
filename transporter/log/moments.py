"""Times of the log as people name them: ISO 8601, or how long ago."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

EPOCH: Final = datetime.fromtimestamp(0, UTC)


class Named(NamedTuple):
    """A time in µs UTC; ``local`` is it as this machine's zone has it, where none was given."""

    microseconds: int
    local: datetime | None = None


def named(text: str, now: datetime) -> Named:
    """Return the time that *text* names: in ISO 8601, or as an age such as ``10m`` before *now*.

    Raise :class:`ValueError`, with what to write instead, for anything else.
    """
    try:
        time = datetime.fromisoformat(text)
        local = time.astimezone() if time.tzinfo is None else None
        return Named(max(0, microseconds(local or time)), local)
    except (ValueError, OverflowError, OSError):
        return Named(max(0, microseconds(now) - _age(text)))


def microseconds(time: datetime) -> int:
    """Return *time* as µs UTC."""
    return (time - EPOCH) // timedelta(microseconds=1)


def _age(text: str) -> int:
    """Return the microseconds that a text like ``10m`` or ``10m ago`` stands for."""
    from transporter.units import duration  # noqa: PLC0415 - imports pydantic

    try:
        return round(duration(text.removesuffix("ago").strip()) * 1e6)
    except ValueError as error:
        raise ValueError(
            "is neither an offset nor a time; write 1200, 10m, "
            "2030-01-31T08:00 or 2030-01-31T08:00:00+00:00"
        ) from error
