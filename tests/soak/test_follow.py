"""A process that follows the tail while the log rolls, restarts, shrinks and is compacted."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

import pytest
from follow_tools import check, follow

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)


@pytest.mark.timeout(1800)
def test_a_thousand_rolls_are_followed(tmp_path: Path) -> None:
    """Over rolls, compactions, deletions and kills each entry is seen once or reported missing."""
    seed = random.randrange(1 << 32)
    logger.warning("seed %d", seed)
    writer, seen, missing = follow(tmp_path / "log", 1000, seed)
    counts = check(writer, seen, missing)
    logger.warning(
        "%s, missing %s, %d dropped, %d segments removed, %d restarts",
        *(dict(counts), missing, writer.compacted, writer.removed, writer.restarts),
    )
    # Retention's share depends on the machine, but enough entries must be left to be seen.
    assert counts["seen"] > len(writer.keys) * 0.2
    assert missing
    assert min(writer.compacted, writer.removed, writer.restarts) > 0
