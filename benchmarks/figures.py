"""Statistics of repeated measurements: typical value, spread, ratio of pairs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log
from statistics import median
from typing import TYPE_CHECKING, Final, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

Figure = Literal["ratio", "ours"]
RATIO: Final[Figure] = "ratio"
OURS: Final[Figure] = "ours"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest of *values* that *share* of them (0 to 1) do not exceed.

    Nearest rank: always a value that was measured, never one in between.
    """
    if not values:
        raise ValueError("no values to take a percentile of")
    rank = ceil(share * len(values))
    return sorted(values)[max(0, rank - 1)]


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some measurements, and the least and the greatest of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return the spread of *values*, of which there must be one at least."""
        return cls(median(values), min(values), max(values))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return ours over theirs, pair by pair.

    A pair is measured one right after the other. So a disturbance of the machine that lasts longer
    touches both and leaves their ratio alone.
    """
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]


@dataclass(frozen=True, slots=True)
class Aim:
    """The wanted median of a comparison's ratio, or of our own figure."""

    limit: float
    at_least: bool
    figure: Figure = RATIO

    def is_reached(self, value: float) -> bool:
        """Return whether *value* is good enough."""
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True, slots=True)
class Comparison:
    """One subject against one rival, measured in pairs.

    ``ours`` and ``theirs`` are in ``unit``, one value a pair, in the order in
    which they were measured.
    """

    subject: str
    rival: str
    unit: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    aim: Aim | None = None

    @property
    def ratio(self) -> Spread:
        """Ours over theirs."""
        return Spread.of(ratios(self.ours, self.theirs))

    @property
    def is_reached(self) -> bool | None:
        """True if the aim is reached, or ``None`` without one."""
        if self.aim is None:
            return None
        found = self.ratio if self.aim.figure == RATIO else Spread.of(self.ours)
        return self.aim.is_reached(found.median)


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds that an operation took, by its size."""

    what: str
    unit: str
    points: tuple[tuple[int, float], ...]

    @property
    def slope(self) -> float:
        """The exponent of the power of the size that the seconds follow."""
        return slope(self.points)


def slope(points: Sequence[tuple[int, float]]) -> float:
    """Return the slope of the line through the logarithms of *points*, by least squares."""
    pairs = [(log(size), log(seconds)) for size, seconds in points]
    middle = [sum(each) / len(pairs) for each in zip(*pairs, strict=True)]
    above = sum((x - middle[0]) * (y - middle[1]) for x, y in pairs)
    return above / sum((x - middle[0]) ** 2 for x, _ in pairs)


@dataclass(frozen=True, slots=True)
class Section:
    """The results of one benchmark, and its method.

    ``limits`` explains the causes of a missed aim. It is shown only then. A section with
    ``curves`` is drawn as these.
    """

    name: str
    method: str
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...] = ()
    limits: str = ""
    curves: tuple[Curve, ...] = ()

    @property
    def has_missed_aim(self) -> bool:
        """True if any aim was missed."""
        return any(comparison.is_reached is False for comparison in self.comparisons)
