"""Simulated power cuts: at every operation of random lives, in every way a disk may lose."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from typing import TYPE_CHECKING

import pytest
from crash_hunt import Plan, hunt

if TYPE_CHECKING:
    from collections.abc import Iterator

STATES = 300
EXHAUSTIVE_STATES = 500_000
STATES_OF_A_LIFE = 100
"""Fewer crash states than any life has, so this many lives are enough."""
WORKERS = min(2, os.cpu_count() or 1)


@pytest.mark.timeout(4 * 3600)
def test_no_power_cut_loses_what_was_promised(
    exhaustive: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Invariants 1 to 6 and 18: every legal crash state opens and holds the promised entries."""
    wanted = EXHAUSTIVE_STATES if exhaustive else STATES
    seen: set[int] = set()
    lives = 0
    # The long run is beside tests that wait for real services.
    niceness = 10 if exhaustive else 0
    for found in _hunted(range(wanted // STATES_OF_A_LIFE), niceness, monkeypatch):
        lives += 1
        seen.update(found)
        if len(seen) >= wanted:
            break
    with capsys.disabled():
        print(f"\n{len(seen)} distinct crash states of {lives} lives, all as promised")  # noqa: T201 - the figure
    assert len(seen) >= wanted


def _hunted(seeds: range, niceness: int, patch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Yield the fingerprints of each life's crash states, in the order of *seeds*."""
    # So that fingerprints compare between processes.
    patch.setenv("PYTHONHASHSEED", "0")
    with ProcessPoolExecutor(WORKERS, get_context("spawn"), _begin, (niceness,)) as pool:
        lives = iter(seeds)
        running = [pool.submit(_life, seed) for seed in islice(lives, 2 * WORKERS)]
        try:
            while running:
                yield running.pop(0).result()
                running += [pool.submit(_life, seed) for seed in islice(lives, 1)]
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(niceness: int) -> None:
    gc.disable()
    os.nice(niceness)


def _life(seed: int) -> list[int]:
    return list(hunt(seed, Plan()))
