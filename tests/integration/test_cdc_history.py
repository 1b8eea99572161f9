"""The copy beside the stream: each key's history in the log is exact, whatever is killed."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest
from cdc_tools import (
    KEYS,
    MemoryLog,
    Writers,
    clean_slots,
    histories,
    logged_histories,
    prepare_traced,
    wrong_keys,
)

if TYPE_CHECKING:
    from services.postgres import Database

pytestmark = pytest.mark.postgres


KILLS = 6


def copy_beside_writers(database: Database, seed: int, seconds: float) -> MemoryLog:
    """Copy and follow the tables beside writers, with kills; return the log at rest."""
    rng = random.Random(seed)
    # Small chunks and batches, so that a lot comes between.
    log = MemoryLog(database, copy_rows=7, batch_rows=rng.choice((3, 20, 200)))
    with Writers(database, KEYS, seed):
        ends = time.monotonic() + seconds
        # A busy machine takes longer for as many.
        while time.monotonic() < ends or log.kills < KILLS:
            log.poll(0.01)
            if rng.random() < 0.03:
                # Between a poll and its append, or behind it.
                if rng.random() < 0.5:
                    log.reader().poll(0.01)
                log.kill()
    log.drain(database)
    log.kill()
    return log


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_each_keys_history_is_exact(postgres: Database, seed: int) -> None:
    """Copy row, then each later change once and in order, beside writers and kills."""
    prepare_traced(postgres)
    with clean_slots(postgres):
        log = copy_beside_writers(postgres, seed, 5.0)
    assert wrong_keys(histories(postgres), logged_histories(log.messages)) == {}
    assert log.kills > 3
    copied = sum(message.phase == "copy" for message in log.messages)
    synced = sum(message.phase == "sync" for message in log.messages)
    assert copied > 100
    assert synced > 100
