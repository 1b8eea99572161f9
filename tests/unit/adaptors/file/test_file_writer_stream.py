"""The file writer on pipes and devices, which have no length."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from file_sink import FIRST
from transporter_adaptors.file.writer import FileWriter

from transporter.errors import RouteFault, SinkTimeout, SinkUnavailable
from transporter.message import Message
from transporter.testing import RecordingAck, entries

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """Return a named pipe without a reader."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.fixture
def reading(pipe: Path) -> Iterator[int]:
    """Open the pipe for reading, and yield the descriptor."""
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    yield descriptor
    os.close(descriptor)


def writer_to(path: Any, deadline: float = 10.0, **settings: Any) -> FileWriter:
    """Return an open writer."""
    writer = FileWriter(FileWriter.Config(path=path, format="data", **settings))
    assert writer.open(replace(FIRST, deadline=deadline)) is None
    return writer


def write(writer: FileWriter, *data: bytes) -> RecordingAck:
    """Write one slice and return its recorded acks."""
    batch = entries([Message("n", one) for one in data])
    ack = RecordingAck(batch)
    writer.write(batch, ack)
    return ack


def test_a_pipe_takes_lines(pipe: Path, reading: int) -> None:
    """Lines go into a pipe, without a progress file and without a stored offset."""
    writer = writer_to(pipe)

    assert write(writer, b"1", b"2").complete

    assert os.read(reading, 100) == b"1\n2\n"
    assert [path.name for path in pipe.parent.iterdir()] == ["pipe"]
    writer.close()


def test_a_pipe_that_nobody_reads_is_unavailable(pipe: Path) -> None:
    """Opening a pipe without a reader does not block and is retried."""
    with pytest.raises(SinkUnavailable, match="pipe: No such device"):
        writer_to(pipe)


def test_a_pipe_that_was_left_is_unavailable(pipe: Path) -> None:
    """A slice to a pipe whose reader has gone is refused as unavailable."""
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = writer_to(pipe)
    os.close(descriptor)

    (error, _) = write(writer, b"1").failures[0]

    assert isinstance(error, SinkUnavailable)
    writer.close()


def test_a_pipe_that_was_made_again_is_opened_again(pipe: Path, reading: int) -> None:
    """A receiver that restarts with a pipe of its own gets what is retried."""
    writer = writer_to(pipe)
    pipe.unlink()
    os.mkfifo(pipe)
    # The fixture closes the descriptor, which is that of the new pipe from here on.
    fresh = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.dup2(fresh, reading)
    os.close(fresh)

    assert isinstance(write(writer, b"1").failures[0][0], SinkUnavailable)
    assert write(writer, b"1").complete

    assert os.read(reading, 100) == b"1\n"
    writer.close()


def test_a_slow_reader_is_waited_for(pipe: Path, reading: int) -> None:
    """A slice larger than the pipe's buffer is written as it is read."""
    writer = writer_to(pipe)
    found = []
    os.set_blocking(reading, True)

    def read() -> None:
        while sum(map(len, found)) < 1_000_001:
            found.append(os.read(reading, 65536))

    thread = threading.Thread(target=read, name="slow reader")
    thread.start()
    assert write(writer, b"x" * 1_000_000).complete
    thread.join()
    writer.close()

    assert b"".join(found) == b"x" * 1_000_000 + b"\n"


def test_a_reader_that_takes_nothing_is_a_timeout(pipe: Path, reading: int) -> None:
    """A full pipe blocks a slice no longer than the deadline."""
    assert reading >= 0
    writer = writer_to(pipe, deadline=0.05)

    (error, _) = write(writer, b"x" * 1_000_000).failures[0]

    assert isinstance(error, SinkTimeout)
    writer.close()


@pytest.mark.parametrize("name", ["/dev/null", "/dev/fd/{}"])
def test_a_device_has_nothing_beside_it(tmp_path: Path, name: str) -> None:
    """A device, or the process's own stream even if it leads to a file, has no progress file."""
    with (tmp_path / "out").open("wb") as file:
        path = Path(name.format(file.fileno()))
        writer = writer_to(path)
        assert write(writer, b"1").complete
        writer.close()

    assert not path.with_name(path.name + ".progress").exists()
    assert not (tmp_path / "out.progress").exists()


def test_a_device_does_not_roll() -> None:
    """Rolling a device is refused at the open."""
    with pytest.raises(RouteFault, match="/dev/null: is not a regular file and cannot roll"):
        writer_to(Path("/dev/null"), roll_bytes=100)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    """A folder in the place of the file stops the route."""
    with pytest.raises(RouteFault, match="Is a directory"):
        writer_to(tmp_path)
