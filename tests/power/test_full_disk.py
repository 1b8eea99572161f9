"""A disk that fills up under a running engine, and is emptied again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NoReturn

import pytest
from engine_tools import Events, delivered, make_pipeline, running, until
from log_tools import crash, offsets_of
from power.loop import memory

from transporter.engine.events import State
from transporter.errors import LogFull
from transporter.log.commit_log import CommitLog
from transporter.message import Message, messages_to_batch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transporter.engine.engine import Engine

DISK: Final = 48 << 20
LINES: Final = 6000
SPARE: Final = 3 << 20
"""Bytes the ballast leaves free: less than all lines take, more than one frame."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserve little at a time, so that a small disk fills up frame by frame."""
    monkeypatch.setattr("transporter.log.active_segment.PREALLOCATION", 1 << 20)


def lines(count: int) -> list[str]:
    """Return *count* lines that no compression makes small."""
    return [f"n {number} {os.urandom(1200).hex()}" for number in range(count)]


def fill(ballast: Path, spare: int) -> None:
    """Make a *ballast* of all but *spare* bytes of its disk."""
    room = os.statvfs(ballast.parent)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize - spare)


def is_waiting(engine: Engine) -> bool:
    """Return true if the reader waits for room."""
    return engine.status().readers[0].state is State.WAITING


def test_a_full_disk_holds_readers_back_and_nothing_else(
    tmp_path: Path,
    needs: Callable[..., None],
    figure: Callable[[str], None],
) -> None:
    """Invariant 14: readers wait, delivery goes on, and with room all flows, in order, once."""
    needs(root=True)
    events, out = Events(), tmp_path / "out.jsonl"
    with memory(tmp_path / "log", DISK):
        pipeline = make_pipeline(tmp_path, [], end=False, out={}, other={})
        with running(pipeline, events=events) as engine:
            fill(tmp_path / "log" / "ballast", SPARE)
            make_pipeline(tmp_path, lines(LINES), end=False, out={}, other={})
            events.await_count("log-full", 3)
            assert is_waiting(engine)
            logged = engine.status().readers[0].logged
            assert 0 < logged < LINES
            # All logged entries are delivered, on both routes, while the disk is full.
            until(lambda: len(delivered(out)) == logged)
            until(lambda: len(delivered(tmp_path / "other.jsonl")) == logged)
            assert is_waiting(engine)
            (tmp_path / "log" / "ballast").unlink()
            until(lambda: engine.status().readers[0].logged == LINES)
            until(lambda: len(delivered(out)) == LINES)
            assert engine.halted == []
        assert offsets_of(tmp_path / "log") == list(range(LINES))
    for name in ("out", "other"):
        numbers = [int(line["data"].split()[0]) for line in delivered(tmp_path / f"{name}.jsonl")]
        assert numbers == list(range(LINES))
    figure(f"full disk: the reader waited at entry {logged}, both routes came to its end")


def append_until_full(log: CommitLog, size: int) -> NoReturn:
    """Append messages of *size* bytes until there is no room for another."""
    while True:
        log.append(messages_to_batch([Message("n", os.urandom(size))]), "r")


def test_a_killed_log_opens_on_a_disk_without_room(
    tmp_path: Path, needs: Callable[..., None]
) -> None:
    """Invariants 13 and 14: without a free byte the recovery's copy is still made."""
    needs(root=True)
    directory = tmp_path / "disk" / "log"
    with memory(tmp_path / "disk", DISK):
        log = CommitLog.open(directory)
        fill(tmp_path / "disk" / "ballast", SPARE)
        for size in (700_000, 5000, 10):
            with pytest.raises(LogFull):
                append_until_full(log, size)
        acked = list(range(log.durable + 1))
        crash(log)
        for _ in range(3):
            log = CommitLog.open(directory)
            assert offsets_of(directory) == acked
            crash(log)
        (tmp_path / "disk" / "ballast").unlink()
        with CommitLog.open(directory) as log:
            first, _ = log.append(messages_to_batch([Message("n", b"room")]), "r")
        assert offsets_of(directory) == [*acked, first]
