"""The page of the last half hour: a chart for each count of readers and routes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from transporter.console.formats import count_text, rate_text
from transporter.control.history_rates import known_counts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

WIDTH: Final = 600
HEIGHT: Final = 90
WINDOW: Final = 1800.0


class HistoryChart(NamedTuple):
    """One count of one reader or route over half an hour.

    ``lines`` are several where the count was not known for a while.
    """

    kind: str
    name: str
    what: str
    now: str
    most: str
    lines: tuple[str, ...]


def history_charts(history: Mapping[str, Any], now: float) -> Iterator[HistoryChart]:
    """Yield the charts of *history*, as they are at the wall time *now*."""
    for count in known_counts(history):
        known = [each for each in count.values if each is not None]
        yield HistoryChart(
            count.kind,
            count.name,
            f"{count.what}/s" if count.is_rate else count.what,
            _value_text(known[-1], is_rate=count.is_rate),
            _value_text(max(known), is_rate=count.is_rate),
            tuple(_lines(count.times, count.values, max(known), now)),
        )


def _value_text(value: float, *, is_rate: bool) -> str:
    return rate_text(value) if is_rate else count_text(round(value))


def _lines(
    times: Sequence[float], values: Sequence[float | None], most: float, now: float
) -> Iterator[str]:
    line: list[str] = []
    for at, value in zip(times, values, strict=True):
        if value is None:
            if line:
                yield " ".join(line)
            line = []
            continue
        ago = min(max(0.0, now - at), WINDOW)
        x = round(WIDTH - ago / WINDOW * WIDTH, 1)
        y = round(HEIGHT - 2 - value / (most or 1) * (HEIGHT - 4), 1)
        line.append(f"{x:g},{y:g}")
    if line:
        yield " ".join(line)
