"""Evaluation of the outbox, Kafka and queue benchmarks from the reports of their processes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import queue
from benchmarks.claim_workers import log_one, take_rows
from benchmarks.latency import RATE, pace_rows
from benchmarks.messages import batches, documents
from benchmarks.outbox_claims import batch_times, waits
from transporter.adaptor import Batch
from transporter.log.commit_log import CommitLog

if TYPE_CHECKING:
    from pathlib import Path


def test_each_row_waits_for_the_step_that_took_it() -> None:
    """Rows of one step share its times, and the wait of each begins with its own commit."""
    found = waits([10.0, 11.0, 12.0], [(2, 11.5, 11.75), (3, 12.25, 12.5)])
    assert found == ([1500.0, 500.0, 250.0], [1750.0, 750.0, 500.0])


@pytest.mark.parametrize("taken", [[], [(1, 1.0, 1.0)]])
def test_rows_that_were_not_taken_are_an_error(taken: list[tuple[int, float, float]]) -> None:
    """A side that loses rows is an error, not a faster side."""
    with pytest.raises(RuntimeError, match=f"{len(taken)} rows of 2"):
        waits([0.0, 0.0], taken)


def test_a_batch_lasts_from_the_end_of_the_one_before() -> None:
    """The times of all batches add up to the whole turn, empty looks included."""
    found = batch_times(1.0, [(5, 1.25, 1.5), (10, 1.75, 2.5), (15, 2.75, 3.0)])
    assert found == [500.0, 1000.0, 500.0]


def test_steps_go_on_until_all_rows_are_taken_and_skip_looks_in_vain() -> None:
    """Only a look with rows is a step, and each step has the rows so far and two times."""
    looks = iter([(0, 0.0), (4, 1.0), (0, 0.0), (6, 2.0), (99, 3.0)])
    before = time.time()
    found = take_rows(lambda: next(looks), 10)
    assert [(count, at_hand) for count, at_hand, _ in found] == [(4, 1.0), (10, 2.0)]
    assert all(before <= done <= time.time() for *_, done in found)


class Source:
    """A source of one batch that records the durable offset at each commit."""

    def __init__(self, log: CommitLog, batch: Batch) -> None:
        self.log, self.batch, self.told = log, batch, []

    def poll(self, _: float) -> Batch:
        given, self.batch = self.batch, Batch(())
        return given

    def commit(self, position: str) -> None:
        self.told.append((position, self.log.durable))


def test_our_side_tells_the_source_what_is_durable_and_nothing_before(tmp_path: Path) -> None:
    """The engine's side of the comparison logs each row before its purge, like a feed."""
    with CommitLog.open(tmp_path) as log:
        source: Any = Source(log, Batch(batches(1, 50)[0], "behind", 7))
        rows, at_hand = log_one(source, log)
        assert (rows, source.told) == (50, [("behind", 49)])
        assert at_hand <= time.time()
        assert log_one(source, log)[0] == 0
        assert log.positions == {"outbox": "behind"}


def test_rows_come_at_a_steady_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row waits for its own moment, so a slow one does not make the later ones late."""
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(round(seconds * RATE, 3))
        now[0] += seconds

    monkeypatch.setattr("benchmarks.latency.time.perf_counter", lambda: now[0])
    monkeypatch.setattr("benchmarks.latency.time.sleep", sleep)
    rows = []
    for row in pace_rows(4):
        rows.append(row)
        now[0] += (1.5 if row[0] == 1 else 0.0) / RATE
    assert rows == [(n, key, data.decode()) for n, (key, data) in enumerate(documents(4))]
    assert slept == [0.0, 1.0, 0.0, 0.5]


def test_queues_are_held_to_what_others_reach() -> None:
    """The aims are 51 000 and 94 000 messages a second and 100 ms, without transactions."""
    found = {
        **{f"{role} 1": (51_000.0,) for role in ("ours", "transactional", "bare", "each")},
        **{f"{role} 4": (93_999.0,) for role in ("ours", "transactional", "bare")},
        "late": (100.5,),
        "hop": (1.0,),
    }
    reached = [(each.subject, each.is_reached) for each in queue.compare(found)]
    assert reached == [
        ("receive and ack, 1 consumer", True),
        ("receive and ack, transactional, 1 consumer", None),
        ("receive and ack, 4 consumers", False),
        ("receive and ack, transactional, 4 consumers", None),
        ("receive and ack, 1 consumer", None),
        ("redelivered too late by, p99", False),
    ]
