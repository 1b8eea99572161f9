"""Open segments: few for many readers, and none of a removed file."""

from __future__ import annotations

import errno
import os
import resource
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from compaction_tools import Frame, compacted, letters, write_log
from log_tools import Disk, descriptors

from transporter.errors import DiskUnavailable
from transporter.log.commit_log import CommitLog
from transporter.log.follow import Follower
from transporter.log.open_segments import (
    MOST,
    OpenSegments,
    drop_open_segment,
    open_segments,
    sweep_open_segments,
)
from transporter.log.reader import LogReader
from transporter.log.retention import RetentionSettings, apply_retention
from transporter.log.segment import segment_bases, segment_name
from transporter.protocol.messages import Failure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    Make = Callable[..., pa.RecordBatch]

SEGMENTS = 70


@pytest.fixture
def log_of_many(tmp_path: Path, batch: Make) -> Path:
    """Return a log directory with one entry in each of many segments."""
    directory = tmp_path / "log"
    with CommitLog.open(directory, segment_bytes=1) as log:
        for _ in range(SEGMENTS):
            log.append(batch(1), "r")
    return directory


@pytest.mark.exhaustive
def test_many_readers_share_few_descriptors(log_of_many: Path) -> None:
    """Sixty-four routes on one log of many segments need no more descriptors than one."""
    with ExitStack() as stack:
        readers = [stack.enter_context(LogReader(log_of_many)) for _ in range(64)]
        for reader in readers:
            assert sum(map(len, reader.read(0, SEGMENTS - 1))) == SEGMENTS
        assert 0 < descriptors(log_of_many) <= MOST
    assert descriptors(log_of_many) == 0


@pytest.mark.exhaustive
def test_readers_at_different_places_share_few_descriptors(log_of_many: Path) -> None:
    """A reader in the middle of a segment keeps only that segment open."""
    with ExitStack() as stack:
        going = []
        for at in range(60):
            reader = stack.enter_context(LogReader(log_of_many))
            going.append(reader.read(at, SEGMENTS - 1))
            assert next(going[-1]).num_rows == 1
        assert descriptors(log_of_many) <= MOST + len(going)
        assert [sum(map(len, each)) for each in going] == [SEGMENTS - 1 - at for at in range(60)]
        assert descriptors(log_of_many) <= MOST


def test_a_segment_is_not_closed_under_a_reader(log_of_many: Path) -> None:
    """A reader goes on in its open file, even when the file is dropped."""
    with LogReader(log_of_many) as reader, LogReader(log_of_many) as other:
        found = next(reader.frames(0, 0))
        (log_of_many / segment_name(0)).unlink()
        drop_open_segment(log_of_many / segment_name(0))
        assert sum(map(len, other.read(1, SEGMENTS - 1))) == SEGMENTS - 1
        assert found.entries().num_rows == 1
        assert descriptors(log_of_many, removed=True) == 1
        del found
        assert descriptors(log_of_many, removed=True) == 0


def test_a_sweep_closes_what_was_removed_or_replaced(log_of_many: Path) -> None:
    """The next sweep frees the space of a segment that another process has removed."""
    with LogReader(log_of_many) as reader:
        assert sum(map(len, reader.read(60, SEGMENTS - 1))) == SEGMENTS - 60
        (log_of_many / segment_name(60)).unlink()
        path = log_of_many / segment_name(61)
        path.with_suffix(".copy").write_bytes(path.read_bytes())
        path.with_suffix(".copy").rename(path)
        before = descriptors(log_of_many)
        assert descriptors(log_of_many, removed=True) == 2
        sweep_open_segments()
        assert descriptors(log_of_many, removed=True) == 0
        assert descriptors(log_of_many) == before - 2


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_what_this_process_removes_or_replaces_is_closed_at_once(tmp_path: Path, how: str) -> None:
    """Retention and compaction free a segment's space at once, whichever reader had it open."""
    last = write_log(tmp_path, [[Frame(letters("AAB"))], [Frame(letters("A"))]])
    with LogReader(tmp_path) as reader:
        assert sum(map(len, reader.read(0, last))) == last + 1
        before = descriptors(tmp_path)
        if how == "removed":
            settings = RetentionSettings(bytes=0)
            assert list(apply_retention(tmp_path, watermark=lambda: last, settings=settings, now=0))
        else:
            assert compacted(tmp_path, last).segments
        assert descriptors(tmp_path, removed=True) == 0
        assert descriptors(tmp_path) == before - 1


def test_any_read_sweeps_now_and_then(log_of_many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that reads on closes removed segments without a request."""
    with LogReader(log_of_many) as reader:
        assert sum(map(len, reader.read(60, 62))) == 3
        (log_of_many / segment_name(60)).unlink()
        assert sum(map(len, reader.read(62, 62))) == 1
        assert descriptors(log_of_many, removed=True) == 1
        monkeypatch.setattr("transporter.log.open_segments.SWEEP", 0.0)
        assert sum(map(len, reader.read(62, 62))) == 1
        assert descriptors(log_of_many, removed=True) == 0


def test_a_follower_with_nothing_to_read_lets_go_of_what_was_removed(log_of_many: Path) -> None:
    """``log tail`` on an idle log keeps no space that retention has freed."""
    with Follower(log_of_many, 60, SEGMENTS - 1) as follower:
        assert sum(1 for _ in follower.poll()) == SEGMENTS - 60
        (log_of_many / segment_name(60)).unlink()
        assert descriptors(log_of_many, removed=True) == 1
        assert list(follower.poll()) == []
        assert descriptors(log_of_many, removed=True) == 0


def test_a_full_descriptor_table_costs_only_what_is_kept_for_later(log_of_many: Path) -> None:
    """When no descriptor is left, segments that are not being read are closed."""
    with LogReader(log_of_many) as reader:
        assert sum(map(len, reader.read(0, 30))) == 31
        with _no_more_descriptors():
            assert sum(map(len, reader.read(31, SEGMENTS - 1))) == SEGMENTS - 31


def test_a_read_without_descriptors_is_retried_by_its_route(log_of_many: Path) -> None:
    """A full descriptor table or a disk error halts no route, because both may end soon."""
    with LogReader(log_of_many) as reader, _no_more_descriptors():
        with pytest.raises(DiskUnavailable, match="Too many open files") as caught:
            list(reader.read(0, 1))
        assert Failure.of(caught.value).kind is FailureKind.UNAVAILABLE
    disk = Disk()
    disk.failing["pread_into"] = OSError(errno.EIO, "Input/output error")
    with LogReader(log_of_many, disk) as reader:
        with pytest.raises(DiskUnavailable, match="Input/output error"):
            list(reader.read(0, 1))
        disk.failing.clear()
        assert sum(map(len, reader.read(0, 1))) == 2


def test_threads_share_segments_without_harm(log_of_many: Path) -> None:
    """Readers of many threads read everything, while segments are dropped under them."""
    read: list[int] = []
    over = threading.Event()

    def go() -> None:
        with LogReader(log_of_many) as reader:
            read.extend(sum(map(len, reader.read(0, SEGMENTS - 1))) for _ in range(3))

    def drop() -> None:
        while not over.wait(0.001):
            open_segments(LogReader(log_of_many).files).clear()

    dropping = threading.Thread(target=drop)
    threads = [threading.Thread(target=go) for _ in range(4)]
    for each in (dropping, *threads):
        each.start()
    for each in threads:
        each.join()
    over.set()
    dropping.join()
    assert read == [SEGMENTS] * 12


def test_a_new_log_in_the_place_of_another_is_read_as_it_is(tmp_path: Path, batch: Make) -> None:
    """A new reader reads no segment of a log that stood there before."""
    with LogReader(tmp_path / "log") as old:
        with CommitLog.open(tmp_path / "log") as log:
            log.append(batch(2), "r")
        assert sum(map(len, old.read(0, 1))) == 2
        (tmp_path / "log").rename(tmp_path / "former")
        with CommitLog.open(tmp_path / "log") as log:
            log.append(batch(3), "r")
        with LogReader(tmp_path / "log") as new:
            assert sum(map(len, new.read(0, 2))) == 3


def test_open_segments_make_way_for_the_log_itself(log_of_many: Path) -> None:
    """Files that are open only to save time keep nobody from opening the log."""
    with LogReader(log_of_many) as reader:
        assert sum(map(len, reader.read(0, 30))) == 31
        with _no_more_descriptors(), CommitLog.open(log_of_many) as log:
            assert log.durable == SEGMENTS - 1


def test_other_file_systems_share_nothing() -> None:
    """Only the real disk has a shared cache, and each reader of another one has its own."""
    disk = Disk()
    assert open_segments(disk) is not open_segments(disk)
    assert isinstance(open_segments(disk), OpenSegments)


class _no_more_descriptors:  # noqa: N801 - used as a context manager
    """Leave this process without a free descriptor for the length of a ``with`` block."""

    def __enter__(self) -> None:
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._spare: list[int] = []
        highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, self._limits[1]))
        while True:
            try:
                self._spare.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                return

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)
        for each in self._spare:
            os.close(each)


def test_bases_are_those_of_the_log(log_of_many: Path) -> None:
    """The fixture's log has the stated number of segments."""
    assert len(segment_bases(Disk(), log_of_many)) == SEGMENTS
