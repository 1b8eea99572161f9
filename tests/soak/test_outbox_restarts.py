"""Ten restarts and ten kills of one engine while one route is away, with rows all along."""

from __future__ import annotations

import random
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from engine_tools import delivered
from leader_tools import await_true
from outbox_tools import remaining
from restart_tools import ELECTORS, in_file, in_lmdb, insert, logged, node_of, terms

if TYPE_CHECKING:
    from pathlib import Path

    from services.postgres import Database

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(900)]
TURNS, ROWS = 20, 1_000


@pytest.mark.parametrize("elector", ELECTORS)
def test_many_restarts_and_kills_repeat_nothing(
    elector: str, outbox: Database, tmp_path: Path
) -> None:
    """Exact sinks hold each row once, and the log grows by no copies, wherever a kill hits."""
    node = node_of(tmp_path / "node", outbox, ELECTORS[elector], batch_rows=300)
    chance = random.Random()
    try:
        for turn in range(TURNS):
            insert(outbox, turn * ROWS, ROWS)
            node.start()
            # A leader that was slow has begun more than one term in a life.
            await_true(lambda after=turn: node.has_started and terms(node) > after)
            wanted = turn * ROWS + chance.randrange(ROWS)
            await_true(lambda count=wanted: len(in_file(node.folder)) >= count)
            node.stop(signal.SIGKILL if turn % 2 else signal.SIGTERM)
        (node.folder / "away.down").unlink()
        node.start()
        await_true(lambda: remaining(outbox) == [], 300)
        node.stop()
    finally:
        node.stop(signal.SIGKILL)
    rows = TURNS * ROWS
    assert Counter(in_file(node.folder)) == Counter(range(rows))
    assert sorted(in_lmdb(node.folder)) == list(range(rows))
    away = [int(line["data"]) for line in delivered(node.folder / "away.jsonl")]
    assert (sorted(set(away)), logged(node)) == (list(range(rows)), rows)
