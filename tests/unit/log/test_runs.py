"""The history of runs, which proves a stored offset."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import UUID

from crc32c import crc32c

from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.meta import META, Meta, read_meta
from transporter.log.runs import MAX_RUNS, Run, Runs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    Make = Callable[..., pa.RecordBatch]

RUNS = Runs((Run(3, "a", 10), Run(4, "b", 15), Run(5, "c", 15)))


def test_an_offset_is_proved_by_its_run_up_to_where_the_next_one_begins() -> None:
    """A run proves offsets up to the next run's start, and the newest run any offset."""
    assert RUNS.has_offset("a", 3, 14)
    assert not RUNS.has_offset("a", 3, 15)
    assert not RUNS.has_offset("b", 4, 15)
    assert RUNS.has_offset("c", 5, 99)


def test_an_unknown_run_proves_nothing() -> None:
    """An unknown run proves nothing, because a copied log gives the same offsets."""
    assert not RUNS.has_offset("other", 1, 0)
    assert not RUNS.has_offset("other", 5, 12)


def test_without_a_run_only_what_was_durable_before_the_record_counts() -> None:
    """Without a run only offsets from before the record count, because later ones may be copied."""
    assert RUNS.has_offset("", 2, 9)
    assert not RUNS.has_offset("", 2, 10)
    assert not RUNS.has_offset("", 4, 12)


def test_without_a_run_what_this_run_has_handed_out_counts() -> None:
    """Without a run, offsets that this run has delivered count."""
    assert RUNS.has_offset("", 5, 20, last_handed_out=20)
    assert not RUNS.has_offset("", 5, 21, last_handed_out=20)
    assert not RUNS.has_offset("", 4, 20, last_handed_out=20)


def test_only_so_many_runs_are_remembered() -> None:
    """The record stays bounded, and its start stays known."""
    runs = Runs()
    for epoch in range(1, MAX_RUNS + 50):
        runs = runs.begin(epoch, 7 + epoch)
    assert len(runs.history) == MAX_RUNS
    assert runs.history[0] == Run(1, "", 8)
    assert runs.history[-1].run == runs.current
    assert runs.has_offset("", 1, 7)
    assert not runs.has_offset("", 1, 8)
    assert runs.has_offset(runs.history[1].run, runs.history[1].epoch, runs.history[1].first)


def test_each_open_is_a_run_that_begins_behind_what_was_durable(
    tmp_path: Path, batch: Make
) -> None:
    """Each open has a random run id, which stays known through clean stops."""
    seen = []
    for count in (3, 0, 2):
        with CommitLog.open(tmp_path) as log:
            seen.append((log.epoch, log.runs.current))
            if count:
                log.append(batch(count), "r")
    with CommitLog.open(tmp_path) as log:
        assert [(each.epoch, each.first) for each in log.runs.history] == [
            (1, 0),
            (2, 3),
            (3, 3),
            (4, 5),
        ]
        assert [(each.epoch, each.run) for each in log.runs.history[:3]] == seen


def test_a_meta_file_without_runs_is_read(tmp_path: Path, batch: Make) -> None:
    """A log without runs begins its record with its next open (Invariant 19)."""
    with CommitLog.open(tmp_path) as log:
        log.append(batch(4), "r")
    fields = json.loads((tmp_path / META).read_bytes().splitlines()[0])
    del fields["runs"]
    body = json.dumps(fields).encode()
    (tmp_path / META).write_bytes(b"%s\n%08x\n" % (body, crc32c(body)))
    found = read_meta(RealFileSystem(), tmp_path)
    assert found is not None
    assert found.runs == Runs()
    with CommitLog.open(tmp_path) as log:
        assert [(each.epoch, each.first) for each in log.runs.history] == [(2, 4)]


def test_a_meta_file_of_the_longest_record_is_read(tmp_path: Path) -> None:
    """The longest meta file that can be written can be read again."""
    runs = Runs(tuple(Run(2**62 + n, f"{n:016x}", 2**62 + n) for n in range(MAX_RUNS)))
    meta = Meta(str(UUID(int=7)), 2**62, 2**62, runs=runs)
    (tmp_path / META).write_bytes(meta.encode())
    assert read_meta(RealFileSystem(), tmp_path) == meta
