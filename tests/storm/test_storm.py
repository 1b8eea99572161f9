"""Storms of the whole engine, judged by a small model (DESIGN.md, "Invariants")."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from storm.__main__ import storm
from storm.journal import Journal
from storm.plan import Plan, draw
from storm.truth import Truth, Violation

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


@pytest.mark.parametrize(("left", "watermark"), [([3, 4], 2), ([3, 4], 3), (None, 0)])
def test_the_model_passes_only_what_was_gone_when_a_route_began_again(
    left: list[int] | None, watermark: int, tmp_path: Path
) -> None:
    """Compaction may drop entries of a forgotten route. What it has left is to be delivered."""
    plan = draw(1, 1)
    plan.routes["r0"]["namespace"] = ".*"
    truth = Truth(tmp_path, plan)
    truth.logs["a"].rows = {offset: ("s0", offset) for offset in range(5)}
    truth.forgot("a", "r0", [], 1.0)
    begins = {"event": "route-begins", "route": "r0", "offset": 0, "left": left}
    Journal(tmp_path / "a.journal").write(what="event", **begins)
    truth.read()
    if left is not None and watermark < left[0]:
        truth.judge("a", {"r0": watermark}, {"r0": set()})
    else:
        with pytest.raises(Violation, match=f"never got {watermark} "):
            truth.judge("a", {"r0": watermark}, {"r0": set()})
