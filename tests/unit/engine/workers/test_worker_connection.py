"""The engine's side of a worker's connection: the payloads sent to it, and its end."""

from __future__ import annotations

import socket
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from transporter.engine.workers.frame_server import ANSWER_BYTES, FrameServer
from transporter.engine.workers.worker_connection import WorkerConnection
from transporter.log.commit_log import CommitLog
from transporter.protocol.channel import EngineChannel, WorkerChannel
from transporter.protocol.messages import Frames, Need, Output, Retry, Slice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa


@contextmanager
def talking(lender: FrameServer | None = None) -> Iterator[tuple[WorkerConnection, WorkerChannel]]:
    """Open a line over TCP and the worker's end of it."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        theirs = socket.create_connection(door.getsockname())
        ours, _ = door.accept()
    with WorkerConnection(EngineChannel(ours), lender) as line, WorkerChannel(theirs) as worker:
        yield line, worker


@pytest.fixture
def lender(tmp_path: Path, batch: Callable[..., pa.RecordBatch]) -> Iterator[FrameServer]:
    """Yield a lender from a log of forty frames of ten rows, 100 kB each."""
    with CommitLog.open(tmp_path / "log", compression=None) as log:
        for _ in range(40):
            log.append(batch(10, size=10_000), "r")
    made = FrameServer(tmp_path / "log", "out")
    yield made
    made.close()


def test_what_a_worker_says_comes_in_order() -> None:
    """Messages arrive one by one, and polling loses none."""
    with talking() as (line, worker):
        assert not line.poll(0)
        worker.send(Output("a"))
        worker.send(Output("b"))
        assert line.poll(1)
        assert line.poll(0)
        assert [line.recv(), line.recv()] == [Output("a"), Output("b")]


def test_a_worker_that_hangs_up_is_told_from_a_broken_connection() -> None:
    """Only an end that the other system has sent counts as a close, and a reset does not."""
    with talking() as (line, worker):
        worker.close()
        assert line.poll(1)
        with pytest.raises(EOFError):
            line.recv()
        assert line.closed_by_worker
    with talking() as (line, worker):
        with socket.socket(fileno=worker.fileno()) as reset:
            reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            reset.detach()
        worker.close()
        assert line.poll(1)
        with pytest.raises(ConnectionError):
            line.recv()
        assert not line.closed_by_worker


def test_a_connection_that_broke_refuses_what_is_sent() -> None:
    """A send on a broken connection raises a connection error for any error of the system."""
    with talking() as (line, worker):
        worker.close()
        with pytest.raises(ConnectionError):
            _flood(line)


def _flood(line: WorkerConnection) -> None:
    for _ in range(100):
        line.send(Output("x" * 100_000))


def test_a_slice_is_lent_in_parts_that_are_bounded(lender: FrameServer) -> None:
    """Each answer ends with the frame that fills it, and the last one is marked (Invariant 17)."""
    lender.begin(Slice(15, 385, 0))
    sizes, done = [], False
    while not done:
        frames, payloads = lender.next_frames()
        assert [each.size for each in frames.lent] == [len(each) for each in payloads]
        sizes.append(sum(map(len, payloads)))
        done = frames.done
    assert all(ANSWER_BYTES <= size < ANSWER_BYTES + 200_000 for size in sizes[:-1])
    assert len(sizes) == 4


def test_nothing_is_lent_that_was_not_asked_for(lender: FrameServer) -> None:
    """A worker gets the frames of its slice once, and no others."""
    assert lender.next_frames() == (Frames(), [])
    lender.begin(Slice(0, 9, 0))
    frames, _ = lender.next_frames()
    assert (len(frames.lent), frames.done) == (1, True)
    assert lender.next_frames() == (Frames(), [])


def test_what_cannot_be_lent_is_said(lender: FrameServer) -> None:
    """A missing parked entry is a failure with its path, and no frames follow."""
    lender.begin(Retry(7))
    frames, payloads = lender.next_frames()
    assert frames.failure is not None
    assert f"{7:020d}.entry" in frames.failure.text
    assert (frames.lent, frames.done, payloads) == ((), True, [])


def test_a_remote_worker_gets_no_frames_with_its_slice(lender: FrameServer) -> None:
    """It asks for them, because its leave to deliver is to be fresher than the slice."""
    with talking(lender) as (line, worker):
        line.send(Slice(0, 9, 0, frames=(b"frame",)))
        assert worker.recv() == Slice(0, 9, 0)


def test_a_need_is_answered_between_messages(lender: FrameServer) -> None:
    """A need is answered without the route, with the payloads behind the answer."""
    with talking(lender) as (line, worker):
        line.send(Slice(0, 9, 0))
        assert worker.recv() == Slice(0, 9, 0)
        before = line.last_sent_at
        worker.send(Need())
        assert not line.poll(1)
        frames = worker.recv()
        assert worker.receive_raw(frames.lent[0].size).size == frames.lent[0].size
        assert line.last_sent_at > before
        worker.send(Output("done"))
        assert line.recv() == Output("done")
