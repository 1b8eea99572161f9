"""The sources of a storm: one keeps its history, one removes rows once they are acknowledged.

The storm's driver writes files with the available rows, the sources that are away and the elected
engine. The engine's acknowledgements to a source are in the source's journal, which survives every
crash.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from storm.journal import Follower, Journal, Switch
from storm.rows import identity, row

from transporter.adaptor import AdaptorConfig, Batch, EndOfSource, LocalPath
from transporter.errors import SourceError, SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from transporter.adaptor import Resume


class SourceConfig(AdaptorConfig):
    """Settings of a storm's source and its reader."""

    world: LocalPath
    source: str
    seed: int
    rows: int = 50
    engine: str = "a"
    turns: bool = False

    @property
    def needs_delivery(self) -> bool:
        """True if engines take turns: the source then waits for delivery."""
        return self.turns

    @property
    def shared(self) -> bool:
        """True if engines take turns."""
        return self.turns


class _Source:
    """Common part of both readers."""

    Config: ClassVar[type[AdaptorConfig]] = SourceConfig

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._available = Switch(config.world / f"{config.source}.available")
        self._fault = Switch(config.world / f"{config.source}.fault")
        self._journal: Journal | None = None
        self._resume: Resume | None = None

    def open(self, resume: Resume) -> None:
        self._resume = resume
        self._journal = Journal(self._config.world / f"{self._config.source}.journal")
        self._meet_fault()

    def close(self) -> None:
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()

    def _told(self, what: str, **details: Any) -> None:
        assert self._journal is not None
        told = {"engine": self._config.engine, "pid": os.getpid()}
        self._journal.write(what=what, **told, **details)

    def _meet_fault(self, *, polling: bool = False) -> None:
        while fault := self._fault.get():
            if fault["mode"] == "away":
                raise SourceUnavailable("the source is away, for the storm")
            if fault["mode"] == "end":
                if not polling:
                    return
                raise EndOfSource
            time.sleep(0.005)  # it hangs

    def _wait(self, timeout: float) -> None:
        time.sleep(min(timeout, 0.005))

    def _messages(self, numbers: Sequence[int]) -> list[Any]:
        config = self._config
        return [row(config.seed, config.source, each).message for each in numbers]


class HistoryReader(_Source):
    """Reads a source that keeps everything, as Kafka does. The position is the next number."""

    def __init__(self, config: SourceConfig) -> None:
        super().__init__(config)
        self._next = 0

    def open(self, resume: Resume) -> None:
        super().open(resume)
        self._next = int(resume.position or 0)
        self._told("opened", position=self._next)
        committable = resume.committable
        if committable is not None:
            self.commit(committable)

    def poll(self, timeout: float) -> Batch:
        self._meet_fault(polling=True)
        end = min(self._available.get() or 0, self._next + self._config.rows)
        if end <= self._next:
            self._wait(timeout)
            return Batch(())
        numbers = range(self._next, end)
        self._next = end
        return Batch(self._messages(numbers), str(end))

    def commit(self, position: str) -> None:
        self._told("committed", position=int(position))


class OutboxReader(_Source):
    """Reads a source whose rows go one by one, when they are durable or delivered.

    With ``turns`` the driver elects an engine, and the source's own file holds the leader of the
    last term. If that is this log, an open resumes its logged entries. They are superseded only
    when another engine has led, as with the real outbox.
    """

    def __init__(self, config: SourceConfig) -> None:
        super().__init__(config)
        self._elected = Switch(config.world / f"{config.source}.elected")
        self._gone = _Gone(config.world / f"{config.source}.gone")
        self._known: list[int] = []
        self._term: int | None = None
        self._decided = False
        self._batch = 0
        self._handed: dict[str, list[int]] = {}
        self._claimed: set[int] = set()

    def open(self, resume: Resume) -> None:
        super().open(resume)
        self._batch = int(resume.position or 0)
        self._told("opened")
        self.keep_alive()

    def close(self) -> None:
        self._term, self._decided = None, False
        super().close()

    def poll(self, timeout: float) -> Batch:
        self._meet_fault(polling=True)
        if not self._leads():
            self._wait(timeout)
            return Batch(())
        gone = self._gone.numbers()
        waiting = [
            each
            for each in range(self._available.get() or 0)
            if each not in gone and each not in self._claimed
        ][: self._config.rows]
        if not waiting:
            self._wait(timeout)
            return Batch(())
        self._batch += 1
        self._handed[str(self._batch)] = waiting
        self._claimed |= set(waiting)
        return Batch(self._messages(waiting), str(self._batch), self._term)

    def commit(self, position: str) -> None:
        for batch in [each for each in self._handed if int(each) <= int(position)]:
            self._remove(self._handed.pop(batch))

    def delivered(self, position: str, rows: Sequence[int]) -> None:
        if position in self._handed:
            self._remove([self._handed[position][each] for each in rows])

    def keep_alive(self) -> None:
        self._leads()

    def confirm(self) -> bool:
        self._leads()
        return self._decided

    def _leads(self) -> bool:
        """Begin a term if this engine is elected and has none, and end a term that is over."""
        config, resume = self._config, self._resume
        assert resume is not None
        elected = not config.turns or self._elected.get() == config.engine
        with self._gone.locked():
            number, leader = self._gone.term()
            mine = leader in ("", resume.log_id)
            if self._term is not None and (number != self._term or not elected):
                term, self._term = self._term, None
                resume.report("leader-fenced", term=term, problem="the storm elected another")
                self._give_up("fenced")
                if not config.turns:
                    # Without an election it is up to people to find the other engine.
                    raise SourceError("another engine has begun a term")
            if not self._decided and not mine:
                self._give_up("another has led")
            if self._term is None and elected:
                if not self._decided:
                    self._go_on()
                self._begin()
        return self._term is not None

    def _begin(self) -> None:
        assert self._resume is not None
        self._term = self._gone.begin_term(self._resume.log_id)
        self._gone.remove(set(self._known) - self._gone.numbers())
        self._told("term", number=self._term, known=self._known)
        self._known = []
        leader = str(uuid.uuid4())
        self._resume.report("leader-acquired", term=self._term, leader=leader)

    def _go_on(self) -> None:
        """Resume the logged entries, because no other engine has led since."""
        assert self._resume is not None
        if not hasattr(self._resume, "reopen"):
            self._give_up("opened")  # an older engine
            return
        # In this order: entries delivered in between are in both results.
        undelivered = [
            {each.offset: identity(each.message.data)[1] for each in entries}
            for _, entries in self._resume.undelivered()
        ]
        self._know()
        gone, batches = self._gone.numbers(), list[tuple[str, list[int]]]()
        for rows in undelivered:
            left = {offset: each for offset, each in rows.items() if each not in gone}
            if left:
                self._batch += 1
                self._handed[str(self._batch)] = list(left.values())
                self._claimed |= set(left.values())
                batches.append((str(self._batch), list(left)))
        self._resume.reopen(batches)
        self._told("reopened", rows=sorted(self._claimed))
        self._decided = True

    def _give_up(self, why: str) -> None:
        assert self._resume is not None
        self._know()
        self._told("superseding", why=why)
        self._resume.supersede()
        self._told("superseded", why=why)
        self._decided = True

    def _know(self) -> None:
        """Keep the rows that the source may delete, and clear the delivered-out batches."""
        assert self._resume is not None
        self._known = [
            identity(entry.message.data)[1]
            for _, entries in self._resume.recent()
            for entry in entries
        ]
        self._handed, self._claimed = {}, set()

    def _remove(self, numbers: Sequence[int]) -> None:
        with self._gone.locked():
            if self._gone.term()[0] != self._term:
                return
            self._told("deleted", rows=list(numbers))
            self._gone.remove(numbers)


class _Gone:
    """The rows that a source has removed, and the number of its last term, in a file of lines."""

    def __init__(self, path: Path) -> None:
        self._path, self._told = path, Follower(path)
        self._numbers: set[int] = set()
        self._term, self._leader = 0, ""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the file against other processes for the length of a ``with`` block."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def numbers(self) -> set[int]:
        """Return the rows that are gone."""
        self._read()
        return self._numbers

    def term(self) -> tuple[int, str]:
        """Return the number of the last term that was begun, and the log of its leader."""
        self._read()
        return self._term, self._leader

    def begin_term(self, leader: str) -> int:
        """Begin a term for *leader*. Return its number."""
        self._write({"term": self.term()[0] + 1, "leader": leader})
        return self.term()[0]

    def remove(self, numbers: Sequence[int] | set[int]) -> None:
        """Remove rows."""
        if numbers:
            self._write({"rows": sorted(numbers)})

    def _write(self, fields: dict[str, Any]) -> None:
        with self._path.open("ab") as file:
            file.write(b"\n" + json.dumps(fields).encode() + b"\n")

    def _read(self) -> None:
        for told in self._told.news():
            self._term = told.get("term", self._term)
            self._leader = told.get("leader", self._leader)
            self._numbers |= set(told.get("rows", ()))
