"""``transporter log tail -f`` as a process, and a writer that makes following hard."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

from acceptance_tools import TRANSPORTER, await_true
from log_tools import crash

from transporter.log.commit_log import CommitLog
from transporter.log.compaction import CompactionSettings, compact
from transporter.log.retention import RetentionSettings, apply_retention
from transporter.message import Message, messages_to_batch

if TYPE_CHECKING:
    from pathlib import Path

KEPT = 40_000
"""Bytes that retention leaves: about twenty segments."""
STALL = 200
"""Rolls after which the follower is paused until entries are gone."""


class Tail:
    """One ``log tail -f`` and its output lines, read as they come."""

    def __init__(self, target: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [*TRANSPORTER, "log", "tail", str(target), "-f", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((self.process.stdout, self.lines), (self.process.stderr, self.errors))
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self._join()

    def _read(self, stream: Any, lines: list[str]) -> None:
        for line in stream:
            lines.append(line)  # noqa: PERF402 - seen by others while it grows

    def await_lines(self, count: int, timeout: float = 60) -> list[str]:
        """Wait for *count* lines of output and return all lines so far."""
        await_true(lambda: len(self.lines) >= count, timeout, f"{count} lines: {self.errors}")
        return self.lines

    def await_error(self, text: str, timeout: float = 60) -> None:
        """Wait until *text* appears on stderr."""
        await_true(
            lambda: any(text in line for line in self.errors), timeout, f"{text}: {self.errors}"
        )

    def interrupt(self) -> int:
        """Press Ctrl-C and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)
        self._join()
        return self.process.returncode

    def _join(self) -> None:
        self.process.wait(30)
        for thread in self._threads:
            thread.join(30)
        self.process.stdout.close()
        self.process.stderr.close()


class Writer:
    """An engine's log that rolls, restarts, is killed, compacted and cut by retention."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.keys: dict[int, bytes] = {}
        self.compacted = self.removed = self.restarts = 0
        self._chance = random.Random(seed)
        self.log = self._open()

    def _open(self) -> CommitLog:
        return CommitLog.open(self.directory, segment_bytes=1500)

    def roll(self) -> None:
        """Append until another segment has begun."""
        before = self.log._active.path
        while self.log._active.path == before:
            self.append()

    def append(self) -> None:
        """Append a few messages, some of whose keys recur."""
        start = max(self.keys, default=-1) + 1
        count = self._chance.randrange(1, 9)
        keys = [
            b"again" if self._chance.random() < 0.1 else b"%d" % (start + number)
            for number in range(count)
        ]
        messages = [Message("n", b'{"n":%s}' % (b"x" * 20), key) for key in keys]
        first, last = self.log.append(messages_to_batch(messages), "r")
        self.keys |= dict(zip(range(first, last + 1), keys, strict=True))

    def restart(self) -> None:
        """End as an engine does, or as a killed one does, and begin again."""
        if self._chance.random() < 0.5:
            self.log.close()
        else:
            crash(self.log)
        self.log = self._open()
        self.restarts += 1

    def compact(self) -> None:
        """Drop obsolete entries."""
        settings = CompactionSettings(after=0, keep="key", tombstones=0)
        now = 1 << 62
        found = compact(self.directory, watermark=self._all, settings=settings, now=now)
        self.compacted += found.dropped_entries

    def retain(self, size: int = KEPT) -> None:
        """Remove the oldest segments down to *size* bytes."""
        settings = RetentionSettings(bytes=size)
        found = apply_retention(self.directory, watermark=self._all, settings=settings, now=0)
        self.removed += len(list(found))

    def _all(self) -> int:
        return self.log.durable


def follow(directory: Path, rolls: int, seed: int) -> tuple[Writer, list[int], list[list[int]]]:
    """Let a process follow through *rolls*. Return the writer, seen offsets and missing ranges."""
    directory.mkdir()
    with Tail(directory, "--json", "-n", "0") as tail:
        tail.await_error("waiting")
        writer = Writer(directory, seed)
        for number in range(1, rolls + 1):
            writer.roll()
            if number % 10 == 0:
                writer.compact()
                writer.retain()
            if number % 25 == 0:
                writer.restart()
            if number % STALL == STALL // 2:
                stall(tail, writer)
        writer.append()
        end = f'{{"offset": {writer.log.durable},'
        await_true(lambda: any(line.startswith(end) for line in tail.lines[-9:]), 120, end)
        writer.log.close()
        assert tail.interrupt() == 130
        assert len(tail.errors) == 1, tail.errors
    found = [json.loads(line) for line in tail.lines]
    seen = [each["offset"] for each in found if "offset" in each]
    assert [each["data"] for each in found if "offset" in each] == ['{"n":%s}' % ("x" * 20)] * len(
        seen
    )
    return writer, seen, [each["missing"] for each in found if "missing" in each]


def stall(tail: Tail, writer: Writer) -> None:
    """Pause the follower until its unseen entries are gone."""
    tail.process.send_signal(signal.SIGSTOP)
    for _ in range(6):
        writer.roll()
    writer.retain(size=3 * (KEPT // 20))
    tail.process.send_signal(signal.SIGCONT)


def check(writer: Writer, seen: list[int], missing: list[list[int]]) -> Counter[str]:
    """Check that each entry was seen once, reported missing, or obsolete. Count them by outcome."""
    assert seen == sorted(set(seen))
    told = {offset for first, last in missing for offset in range(first, last + 1)}
    assert told.isdisjoint(seen)
    assert set(seen) <= writer.keys.keys()
    last = {key: offset for offset, key in writer.keys.items()}
    unseen = writer.keys.keys() - set(seen) - told
    assert all(last[writer.keys[offset]] > offset for offset in unseen), sorted(unseen)
    return Counter(seen=len(seen), told=len(told), obsolete=len(unseen))
