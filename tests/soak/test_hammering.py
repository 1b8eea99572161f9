"""Operators and kills for minutes: each confirmed action has taken effect."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hammering import hammer

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(1800)
def test_hammering_operators_on_a_killed_engine(tmp_path: Path) -> None:
    """After forty rounds of four operators and twenty random kills the state equals the model."""
    hammer(tmp_path, seed=random.randrange(1 << 32), rounds=40, kills=20)
