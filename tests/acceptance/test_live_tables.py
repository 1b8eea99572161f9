"""The table of ``run`` and ``top`` on a terminal: its columns, rows and keys."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from acceptance_tools import TRANSPORTER
from operator_tools import ENVIRONMENT, feed, operated, route, write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MOVES = re.compile(r"[\r\n]+|\x1b\[[0-9;]*[AHK]")
"""Moves to another line in the drawn text."""
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
LONG = "orders-to-the-data-warehouse"
NARROW = ["state", "total", "per second", "lag", "parked"]
WIDE = ["adaptor", "state", "total", "per second", "watermark", "lag", "parked", "skipped", "doing"]


class Screen:
    """A command on a terminal, with all its output."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process, self._terminal, self._shown = process, terminal, ""

    def press(self, keys: str) -> None:
        """Type *keys* at once, and drop the earlier output."""
        self._shown = ""
        os.write(self._terminal, keys.encode())

    def until(self, what: Callable[[list[str]], bool], seconds: float = 60) -> list[str]:
        """Wait until *what* holds for the drawn lines, and return them."""
        deadline = time.monotonic() + seconds
        while not what(lines := self.lines()):
            assert time.monotonic() < deadline, lines[-40:]
            if select.select([self._terminal], [], [], 0.2)[0]:
                self._read()
        return lines

    def ended(self, seconds: float = 60) -> int:
        """Read until the command has ended, and return its exit code."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline
            if select.select([self._terminal], [], [], 0.1)[0]:
                self._read()
        return self.process.returncode

    def lines(self) -> list[str]:
        """Return the lines drawn since the last key."""
        lines = [ESCAPES.sub("", line).rstrip() for line in MOVES.split(self._shown)]
        return [line for line in lines if line]

    def _read(self) -> None:
        try:
            self._shown += os.read(self._terminal, 1 << 16).decode(errors="replace")
        except OSError:
            time.sleep(0.05)  # its other end is closed


@contextmanager
def on_terminal(width: int, *arguments: str) -> Iterator[Screen]:
    """Run a command on a terminal *width* columns wide, and kill it at the end."""
    # Workers of pytest-xdist have these, of their own terminal.
    around = {name: text for name, text in ENVIRONMENT.items() if name not in ("COLUMNS", "LINES")}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    with subprocess.Popen(
        [*TRANSPORTER, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=around | {"TERM": "xterm"},
        start_new_session=True,
    ) as process:
        os.close(theirs)
        try:
            yield Screen(process, ours)
        finally:
            process.kill()
            os.close(ours)


def header(lines: list[str]) -> list[str]:
    """Return the column names of the last table."""
    found = [line for line in lines if "state" in line and "lag" in line]
    return re.split(r"\s{2,}", found[-1].strip()) if found else []


def rows(lines: list[str]) -> list[str]:
    """Return the row names of the last table."""
    if not header(lines):
        return []
    last = max(at for at, line in enumerate(lines) if "state" in line and "lag" in line)
    cells = [re.split(r"\s{2,}", line)[0] for line in lines[last:]]
    return [name for name in cells if name.startswith(("route ", "reader ")) and ":" not in name]


@pytest.mark.parametrize(
    ("width", "columns"), [(80, NARROW), pytest.param(160, WIDE, marks=pytest.mark.exhaustive)]
)
def test_top_fits_its_terminal(tmp_path: Path, width: int, columns: list[str]) -> None:
    """Names are neither broken nor cut, and the whole width is used."""
    pipeline = write_file(tmp_path, [route(LONG, writer={"reject": [0]}), route("short")])
    feed(tmp_path, "orders 1")
    with operated(pipeline) as engine:
        engine.await_event("route-stopped")
        with on_terminal(width, "top", str(pipeline), "--every", "0.2") as screen:
            lines = screen.until(lambda lines: len(rows(lines)) == 3 and lines[-1].startswith("q "))
            assert header(lines) == columns
            assert {f"route {LONG}", "route short"} < set(rows(lines))
            assert max(map(len, lines)) <= width
            assert any(line.startswith(f"route {LONG}: ") for line in lines)
            screen.press("q")
            assert screen.ended() == 0


@pytest.mark.exhaustive
def test_the_keys_of_top(tmp_path: Path) -> None:
    """Rows are sorted, filtered and paused by keys, also by several at once."""
    pipeline = write_file(tmp_path, [route("b"), route("a")])
    with (
        operated(pipeline),
        on_terminal(100, "top", str(pipeline), "--every", "0.2") as screen,
    ):
        screen.until(lambda lines: rows(lines)[1:] == ["route b", "route a"])
        screen.press("s")
        screen.until(lambda lines: rows(lines)[1:] == ["route a", "route b"])
        screen.press("/route b\r")
        lines = screen.until(lambda lines: rows(lines) == ["route b"])
        assert "s sort: name · p pause · / filter: route b" in lines[-1]
        screen.press("p\x1b")
        lines = screen.until(lambda lines: len(rows(lines)) == 3)
        assert "p resume (paused)" in lines[-1]
        screen.press("pq")
        assert screen.ended() == 0


@pytest.mark.spark
@pytest.mark.parametrize(
    ("width", "columns"), [(80, NARROW), pytest.param(160, WIDE, marks=pytest.mark.exhaustive)]
)
def test_run_has_the_table_of_top(tmp_path: Path, width: int, columns: list[str]) -> None:
    """The live table has the columns of top, before Spark is up and afterwards."""
    pipeline = write_file(tmp_path, [route(LONG), route("short")])
    with on_terminal(width, "run", str(pipeline)) as screen:
        lines = screen.until(lambda lines: len(rows(lines)) == 3, 120)
        assert header(lines) == columns
        assert f"route {LONG}" in rows(lines)
        screen.process.send_signal(signal.SIGTERM)
        assert screen.ended(120) == 0
