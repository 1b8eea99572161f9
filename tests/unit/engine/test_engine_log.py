"""Failures of an engine's log: a lost lock, or a disk that is unavailable for a while."""

from __future__ import annotations

import errno
import multiprocessing
import resource
import secrets
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from engine_tools import Events, SparklessHost, make_pipeline, offsets, running, until
from log_tools import offsets_of

from transporter.engine.engine import Engine
from transporter.engine.events import State
from transporter.errors import LockLost
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.lock import LOCK
from transporter.log.open_segments import MOST
from transporter.log.reader import LogReader
from transporter.log.segment import Segment, segment_bases, segment_name
from transporter.process_limits import MOST_DESCRIPTORS, raise_descriptor_limit
from transporter.worker.watchdog import Watchdog
from transporter.worker.worker import _Engine

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    Make = Callable[..., pa.RecordBatch]


def test_an_engine_without_its_lock_ends(tmp_path: Path) -> None:
    """An engine whose lock file is gone ends with the reason (Invariant 12)."""
    pipeline = make_pipeline(tmp_path, ["n 1", "n 2"], out={})
    engine = Engine(pipeline, SparklessHost(), Events())
    engine.start()
    until(lambda: len(offsets(tmp_path / "out.jsonl")) == 2)
    (tmp_path / "log" / LOCK).unlink()
    until(lambda: engine.wait(0.05))
    with CommitLog.open(tmp_path / "log") as other:
        assert other.durable == 1
        with pytest.raises(LockLost, match="lock"):
            engine.stop(0)
    assert offsets_of(tmp_path / "log") == [0, 1]


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_a_read_that_fails_for_a_while_halts_no_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A route whose reads fail is retried visibly, and goes on when the disk does."""
    failing = threading.Event()
    failing.set()
    frame_at = Segment.frame_at

    def fail(segment: Segment, byte: int) -> object:
        if failing.is_set() and threading.current_thread().name == "route-out":
            raise OSError(number, "the disk is away")
        return frame_at(segment, byte)

    monkeypatch.setattr(Segment, "frame_at", fail)
    # Too large for the engine's memory of recent frames, so the route has to read them.
    lines = [f"n {secrets.token_hex(20_000)}", "n 2"]
    with running(make_pipeline(tmp_path, lines, out={})) as engine:
        until(lambda: engine.status().routes[0].state is State.RETRYING)
        assert "the disk is away" in engine.status().routes[0].problem
        assert engine.halted == []
        failing.clear()
        until(lambda: len(offsets(tmp_path / "out.jsonl")) == 2)


def test_many_routes_share_the_open_segments_of_a_log(tmp_path: Path, batch: Make) -> None:
    """Few segments of a large log are open at once, however many routes there are."""
    with CommitLog.open(tmp_path / "log", segment_bytes=1) as log:
        for _ in range(75):
            log.append(batch(1), "lines")
    routes: dict[str, dict[str, object]] = {f"r{number}": {} for number in range(6)}
    with running(make_pipeline(tmp_path, ["n 1"], **routes)) as engine:
        until(lambda: all(each.watermark >= 74 for each in engine.status().routes))
        assert _open(tmp_path, ".log") <= MOST + len(routes) + 2
        assert engine.halted == []


def test_an_idle_worker_lets_go_of_what_was_removed(
    tmp_path: Path, batch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removed segment's space is freed although a worker that read it is idle."""
    monkeypatch.setattr("transporter.worker.worker.SWEEP", 0.02)
    with CommitLog.open(tmp_path, segment_bytes=1) as log:
        for _ in range(3):
            log.append(batch(1), "r")
    ours, theirs = multiprocessing.Pipe()
    with LogReader(tmp_path) as reader:
        assert sum(map(len, reader.read(0, 2))) == 3
        (tmp_path / segment_name(0)).unlink()
        assert _removed(tmp_path) == 1
        idle = threading.Thread(target=_Engine(theirs, Watchdog(60.0)).next)
        idle.start()
        until(lambda: _removed(tmp_path) == 0)
        ours.close()
        idle.join()
    theirs.close()
    assert segment_bases(RealFileSystem(), tmp_path) == [1, 2]


def test_an_engine_may_open_as_many_files_as_the_system_allows() -> None:
    """``run`` raises the soft limit of descriptors, and never lowers it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        raise_descriptor_limit()
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert raised[1] == before[1]
        assert raised[0] == min(before[1], MOST_DESCRIPTORS) or before[1] < 0
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == raised
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def _removed(directory: Path) -> int:
    """Count the descriptors of removed files in *directory*."""
    return _open(directory, "(deleted)")


def _open(directory: Path, end: str) -> int:
    """Count the descriptors of files in *directory* whose names have this *end*."""
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            name = str(each.readlink())
            count += str(directory) in name and name.endswith(end)
    return count
