"""The strict history of ``postgres-cdc`` for half an hour, or for as many hours as ``HOURS`` says.

Each round has a fresh database and another seed, so that each has a first copy. Servers are crashed
by a killed session, and stopped at once and started again.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from cdc_crashes import FORGETFUL, StoppableServer, crash
from cdc_history import ACTS, FEW, RESTLESS, TABLES, create_tables
from cdc_tools import clean_slots
from integration.test_cdc_strict_history import follow, judge
from services.postgres import fresh_database

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cdc_history import KeyedTable

pytestmark = pytest.mark.postgres

SECONDS = float(os.environ.get("HOURS", "0.5")) * 3600
ROUND = 60.0
"""Seconds of a round, without its rest."""


@pytest.mark.timeout(2 * SECONDS + 600)
@pytest.mark.parametrize(
    ("share", "tables", "acts"),
    [(1.0, TABLES, ACTS), (1 / 3, FEW, RESTLESS)],
    ids=["many tables", "few tables that come and go"],
)
def test_each_keys_history_is_exact_for_hours(
    tmp_path: Path, share: float, tables: Sequence[KeyedTable], acts: Sequence[str]
) -> None:
    """Each key's history in the log is the end of its real one, and nothing comes twice."""
    tmp_path.chmod(0o711)
    ends, seed, total = time.monotonic() + SECONDS * share, 100, Counter[str]()
    with StoppableServer(tmp_path / "server", **FORGETFUL) as server:
        while seed == 100 or time.monotonic() < ends:
            with fresh_database(server.service) as database:
                create_tables(database, tables)
                with clean_slots(database):
                    seconds = min(ROUND * share, max(10.0, ends - time.monotonic()))
                    crashes = [crash, server.restart]
                    log, done = follow(
                        database, seed, seconds, crashes, tables, acts, repeats=tables is TABLES
                    )
                judge(database, log, tables)
            total.update(done)
            seed += 1
    assert total["crash"] > 0
    assert total["kill"] > 0
