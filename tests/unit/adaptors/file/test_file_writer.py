"""The lines that the file writer writes, and its errors."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import resource
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from transporter_adaptors.file.shapes import data_line, json_line
from transporter_adaptors.file.writer import FileWriter

from transporter.adaptor import WriterContext
from transporter.errors import RouteFault, SinkTimeout, SinkUnavailable
from transporter.message import Entry, Message
from transporter.testing import RecordingAck, entries, hostile_messages

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CONTEXT = WriterContext(log_id="log-1", route="route", epoch=1)


def deliver(path: Any, messages: Sequence[Message], **settings: Any) -> RecordingAck:
    """Write *messages* as one slice with a new writer, and return the recorded acks."""
    writer = FileWriter(FileWriter.Config(path=path, **settings))
    try:
        writer.open(CONTEXT)
        batch = entries(messages)
        ack = RecordingAck(batch)
        writer.write(batch, ack)
        return ack
    finally:
        writer.close()


def test_a_line_has_the_whole_entry() -> None:
    """One line of JSON holds every part, with times in ISO 8601 to the microsecond."""
    message = Message(
        "orders",
        b'{"id": 1}',
        b"k",
        "update",
        "copy",
        1_700_000_000_123_456,
        "t/1",
        headers=(("h", b"v"),),
    )

    line = json_line(Entry(7, 1_700_000_001_000_000, message))

    assert json.loads(line) == {
        "offset": 7,
        "namespace": "orders",
        "op": "update",
        "phase": "copy",
        "key": "k",
        "timestamp": "2023-11-14T22:13:20.123456Z",
        "logged_at": "2023-11-14T22:13:21.000000Z",
        "source_id": "t/1",
        "headers": [["h", "v"]],
        "data": {"id": 1},
    }


@pytest.mark.parametrize(
    ("data", "tail"),
    [
        (None, b"}"),
        (b"null", b',"data":null}'),
        (
            b'{"b": 1.10, "a":12345678901234567890}',
            b',"data":{"b": 1.10, "a":12345678901234567890}}',
        ),
        (b"[\r\n1]", b',"data":[  1]}'),
        (b"NaN", b',"text":"NaN"}'),
        (b"", b',"text":""}'),
        (b"[" * 100_000, b',"text":"' + b"[" * 100_000 + b'"}'),
        (b"\xff", b',"base64":"/w=="}'),
    ],
)
def test_data_is_told_apart(data: bytes | None, tail: bytes) -> None:
    """JSON stays digit for digit, and is distinct from text, other bytes and no data."""
    assert json_line(Entry(1, 0, Message("n", data))).endswith(b"]" + tail)


@pytest.mark.parametrize("message", hostile_messages())
def test_no_line_holds_a_control_character(message: Message) -> None:
    """A line of JSON cannot command a terminal, whichever bytes the entry holds."""
    odd = replace(message, key="\x1b[2J\x9b\u202e".encode(), namespace="\x07\x9b")

    text = json_line(Entry(1, 0, odd)).decode()

    assert not [char for char in text if ord(char) < 32 or 127 <= ord(char) < 160]
    assert "\u202e" not in text
    assert json.loads(text)["key"] == "\x1b[2J\x9b\u202e"


def test_the_data_format_is_the_data_alone(tmp_path: Path) -> None:
    """With format data a line is the data, untouched, and a tombstone is an empty line."""
    path = tmp_path / "out"

    deliver(path, [Message("n", b"a\x1b\xff"), Message("n", None)], format="data")

    assert path.read_bytes() == b"a\x1b\xff\n\n"


def test_lines_are_appended_to_what_is_there(tmp_path: Path) -> None:
    """An existing file is kept, and a broken last line is ended, not removed."""
    path = tmp_path / "out"
    path.write_bytes(b"old\nbrok")

    deliver(path, [Message("n", b"1")], format="data")
    deliver(path, [Message("n", b"2")], format="data")

    assert path.read_bytes() == b"old\nbrok\n1\n2\n"


def test_a_full_disk_is_unavailable() -> None:
    """A full disk is a temporary failure."""
    ack = deliver("/dev/full", [Message("n", b"1")])

    assert ack.prefix == []
    assert isinstance(ack.failures[0][0], SinkUnavailable)
    assert "/dev/full: No space left on device" in str(ack.failures[0][0])


def test_a_slice_that_fits_in_part_leaves_nothing_behind(tmp_path: Path) -> None:
    """The part of a slice that was written before the file reached its limit is removed."""
    path = tmp_path / "out"
    path.write_bytes(b"old\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        ack = deliver(path, [Message("n", b"x" * 100_000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)

    assert ack.prefix == []
    assert isinstance(ack.failures[0][0], RouteFault)
    assert path.read_bytes() == b"old\n"


def test_a_lock_that_is_held_too_long_is_a_timeout(tmp_path: Path) -> None:
    """A writer waits for another one until its deadline, and then for the next attempt."""
    path = tmp_path / "out"
    writer = FileWriter(FileWriter.Config(path=path))
    writer.open(replace(CONTEXT, deadline=0.05))
    batch = entries([Message("n", b"1")])
    held, free = RecordingAck(batch), RecordingAck(batch)
    with (tmp_path / "out.progress").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        writer.write(batch, held)
    writer.write(batch, free)
    writer.close()

    assert isinstance(held.failures[0][0], SinkTimeout)
    assert free.complete
    assert len(path.read_bytes().splitlines()) == 1


def test_slices_of_several_writers_stay_together(tmp_path: Path) -> None:
    """Writers that share a file never mix the lines of their slices."""
    path = tmp_path / "out"
    slices = [[Message("n", f"{who}".encode() * 50_000)] * 10 for who in range(4)]
    threads = [
        threading.Thread(target=deliver, args=(path, one), kwargs={"format": "data"}, name=f"w{n}")
        for n, one in enumerate(slices)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    lines = [line[:1] for line in path.read_bytes().splitlines()]
    assert len(lines) == 40
    assert sorted(lines[at] for at in range(0, 40, 10)) == [b"0", b"1", b"2", b"3"]
    assert all(len(set(lines[at : at + 10])) == 1 for at in range(0, 40, 10))


def test_a_dash_is_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """With a dash the lines go to standard output at once, and it stays open."""
    assert deliver("-", [Message("n", b"\x1b1")], format="data").complete
    assert capfdbinary.readouterr().out == b"\x1b1\n"
    assert deliver("-", [Message("n", b"2")]).complete
    assert json.loads(capfdbinary.readouterr().out)["data"] == 2


SHOW = """
import sys
sys.path[:0] = sys.argv[1].split(":")
from transporter_adaptors.file.writer import FileWriter
from transporter.adaptor import WriterContext
from transporter.message import Message
from transporter.testing import RecordingAck, entries
writer = FileWriter(FileWriter.Config(path="-", format="data"))
writer.open(WriterContext("log-1", "route", 1))
batch = entries([Message("n", b"a\\x1b[2J\\tb")])
writer.write(batch, RecordingAck(batch))
"""


def test_a_terminal_is_not_commanded_by_data() -> None:
    """On a terminal the data format shows control characters instead of sending them."""
    master, slave = pty.openpty()
    try:
        command = [sys.executable, "-c", SHOW, ":".join(sys.path)]
        subprocess.run(command, stdout=slave, check=True, timeout=60)
        shown = os.read(master, 1000)
    finally:
        os.close(slave)
        os.close(master)

    assert b"a\\x1b[2J" in shown
    assert b"\x1b" not in shown


def test_the_escapes_for_a_terminal() -> None:
    """Every control character except the tab is escaped, and letters beyond ASCII stay."""
    entry = Entry(1, 0, Message("n", "é\t\x00\x7f\x9b\n".encode()))

    assert data_line(entry, terminal=True) == "é\t\\x00\\x7f\\xc2\\x9b\\x0a".encode()
    assert data_line(entry, terminal=False) == entry.message.data
