"""Files of every released version stay readable, to the last value (Invariant 19)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.inspection import inspect
from transporter.log.meta import CleanMark, read_meta
from transporter.log.reader import LogReader
from transporter.log.segment import Segment, segment_name
from transporter.message import Entries, Message
from transporter.offsets.offset_log import OffsetLog, declared_routes, proved_offset, read_state
from transporter.offsets.state import Range, Replay, RouteState

GOLDEN = Path(__file__).parents[2] / "golden"
START = 1_700_000_000_000_000
SECOND = 1_000_000

ORDER = Message(
    "orders.placed",
    b'{"total": 12345678901234567890.10}',
    b"k1",
    timestamp=1_700_000_000_123_456,
    source_id="outbox/1",
    headers=(("trace", b"\x00\xff"), ("trace", b"2"), ("none", None)),
)
GONE = Message("orders.placed", None, b"k1", op="delete", phase="complete", timestamp=-1)
USER = Message("users.né", b"\x00\xff", None, op="command", phase="copy", content_type=None)


@pytest.fixture(params=sorted(path.name for path in GOLDEN.iterdir() if path.is_dir()))
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a copy of the log that one released format version has written."""
    shutil.copytree(GOLDEN / request.param, tmp_path / "log")
    return tmp_path / "log"


def test_every_entry_is_read(log: Path) -> None:
    """All messages come back unchanged, with their offsets and log times."""
    found = inspect(log)
    with LogReader(log) as reader:
        entries = [entry for batch in reader.read(0, found.last) for entry in Entries(batch)]
    assert [entry.offset for entry in entries] == list(range(124))
    assert [entry.message for entry in entries] == [ORDER, GONE, USER] * 41 + [ORDER]
    times = [entry.logged_at for entry in entries]
    assert times == sorted(times)
    assert {time % SECOND for time in times} == {0}
    assert START < times[0] < times[3] < times[123]


def test_the_segments_say_what_they_hold(log: Path) -> None:
    """Headers, trailers and positions are read."""
    found = inspect(log)
    bases = [segment.base for segment in found.segments]
    assert (bases[0], found.first, found.last, found.confirmed, found.epoch) == (0, 0, 123, 123, 1)
    assert bases == [0, 3, 123]
    segment = Segment(RealFileSystem(), log / segment_name(123))
    try:
        header = segment.header
        assert (header.previous, header.next_offset, header.epoch) == (122, 123, 1)
        assert header.positions == {"outbox": "lsn 2"}
    finally:
        segment.close()
    first = Segment(RealFileSystem(), log / segment_name(0))
    try:
        trailer = first.trailer()
        assert trailer is not None
        assert (trailer.last, trailer.oldest) == (2, trailer.newest)
    finally:
        first.close()


def test_meta_is_read(log: Path) -> None:
    """The mark of the clean stop is read."""
    meta = read_meta(RealFileSystem(), log)
    assert meta is not None
    size = (log / segment_name(123)).stat().st_size
    assert (meta.epoch, meta.proved) == (1, 123)
    assert meta.clean == CleanMark(segment_name(123), size)


def test_the_offset_logs_are_read(log: Path) -> None:
    """Every part of a route's state is read."""
    assert declared_routes(log) == ["fresh", "orders"]
    assert read_state(log, "fresh") == RouteState()
    assert read_state(log, "orders") == RouteState(
        watermark=9,
        above=(Range(12, 12, "operator"),),
        generation=1,
        replay=Replay(2, 5, 4),
        namespaces={"orders.placed": 9, "users.né": 8},
    )
    assert proved_offset(log) == 12


def test_the_log_goes_on(log: Path) -> None:
    """This version appends to an older version's log and settles behind it."""
    from transporter.message import messages_to_batch  # noqa: PLC0415

    with CommitLog.open(log, proved=lambda: proved_offset(log)) as opened:
        assert (opened.epoch, opened.durable) == (2, 123)
        assert opened.positions == {"outbox": "lsn 2", "file": "é 3"}
        assert opened.append(messages_to_batch([USER]), "outbox", "lsn 3") == (124, 124)
        with OffsetLog(log, "orders") as offsets:
            assert offsets.settle(Range(10, 11), opened.durable).watermark == 12
    with LogReader(log) as reader:
        assert sum(batch.num_rows for batch in reader.read(0, 124)) == 125
