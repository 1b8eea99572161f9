"""Growth curves: the slope of known points, and a run of each curve."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks import growth
from benchmarks.figures import Curve, slope

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_slope_is_the_power_that_times_follow(power: float) -> None:
    """Linear work has slope 1, quadratic 2, and constant work 0."""
    points = [(size, 0.01 * size**power) for size in (10, 100, 1000)]
    assert slope(points) == pytest.approx(power)


def test_a_curve_names_its_sizes_and_times() -> None:
    """The note lists the points that the slope was computed from."""
    curve = Curve("parking", "entries", ((1000, 0.5), (10_000, 5.0)))
    assert growth._note(curve) == "parking (entries): 1 000: 500.0 ms · 10 000: 5 000 ms"


@pytest.mark.parametrize(
    "of",
    [
        growth._park,
        growth._open_parked,
        growth._screen,
        growth._namespaces,
        growth._supersede,
        growth._segments,
        growth._deliver_in_flight,
        growth._start,
        growth._new_reader,
        growth._lost_indexes,
    ],
)
def test_each_curve_can_be_taken(tmp_path: Path, of: object) -> None:
    """Each curve can still be measured."""
    assert callable(of)
    assert of(tmp_path, 2) > 0


def test_routes_deliver_all_and_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine of the curve delivers the whole log through each route, without Spark."""
    monkeypatch.setattr(growth, "_ROUTE_ROWS", 1000)
    assert growth._routes(tmp_path, 2) > 0
