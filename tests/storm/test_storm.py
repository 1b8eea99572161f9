"""Storms: the whole engine under everything at once, judged by a small model (DESIGN.md, 2)."""

from __future__ import annotations

from pathlib import Path

import pytest
from storm.__main__ import storm
from storm.plan import Plan, draw

SEEDS = range(1, 7)
"""A sample: ``make storm`` runs a thousand fresh ones."""
ACTS = 200
PLANS = sorted((Path(__file__).parent / "plans").glob("*.json"))


@pytest.mark.parametrize("seed", SEEDS)
def test_everything_holds_in_a_storm(seed: int) -> None:
    """Whatever anybody does, nothing is lost, stale, twice where it must not be, or stuck."""
    result = storm(draw(seed, ACTS))

    assert result.problem == ""
    assert result.acts >= ACTS


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_what_a_storm_found_once_holds(path: Path) -> None:
    """The shortest list of acts that once showed a defect shows it no more."""
    assert storm(Plan.load(path)).problem == ""
