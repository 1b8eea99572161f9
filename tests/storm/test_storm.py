"""Storms of the whole engine, judged by a small model (DESIGN.md, "Invariants")."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from storm.__main__ import storm
from storm.plan import Plan, draw

SEEDS = range(1, 26)
"""Seeds of a sample: ``make storm`` runs a thousand fresh ones."""
ACTS = 200
JOBS = 4
"""Storms at once, because each waits for a good part of its time."""
PLANS = sorted((Path(__file__).parent / "plans").glob("*.json"))


def test_everything_holds_in_storms() -> None:
    """Under any acts no entry is lost, stale, stuck, or repeated where it must not be."""
    with ThreadPoolExecutor(JOBS) as pool:
        results = list(pool.map(storm, [draw(seed, ACTS) for seed in SEEDS]))

    problems = {result.plan.seed: result.problem for result in results if result.problem}
    assert problems == {}
    assert all(result.acts >= ACTS for result in results)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_what_a_storm_found_once_holds(path: Path) -> None:
    """The shortest list of acts that once showed a defect shows it no more."""
    assert storm(Plan.load(path)).problem == ""
