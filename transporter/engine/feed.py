"""A feed: one reader, polled in a thread of its own, into the log."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from transporter.adaptor import EndOfSource, Entries
from transporter.engine.backoff import Backoff
from transporter.engine.events import ReaderStatus, State
from transporter.errors import LogFull, LogPoisoned, SourceUnavailable, TransporterError
from transporter.log.commit_log import appendable
from transporter.log.reader import LogReader
from transporter.message import messages_to_batch, size_of
from transporter.offsets.holds import Hold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transporter.adaptor import Batch, Reader
    from transporter.engine.events import Observer
    from transporter.log.commit_log import CommitLog
    from transporter.pipeline.config import ReaderConfig

POLL: Final = 0.5
"""Seconds a poll may wait: how soon a stop is noticed."""


class LogResume:
    """What the log remembers of one reader; implements ``adaptor.Resume``."""

    def __init__(self, log: CommitLog, reader: str) -> None:
        """Look at *log* as it is now."""
        self._log, self._reader = log, reader

    @property
    def log_id(self) -> str:
        """Names the log."""
        return self._log.log_id

    @property
    def position(self) -> str | None:
        """The newest position logged by this reader."""
        return self._log.positions.get(self._reader)

    def recent(self) -> Iterator[tuple[str | None, Entries]]:
        """Yield this reader's frames, newest first, each with its position."""
        with LogReader(self._log.directory) as reader:
            for found in reader.backwards(self._log.durable):
                source = found.source()
                if source is not None and source.reader == self._reader:
                    yield source.position, Entries(found.entries(), self._log.log_id)


class Feed:
    """Polls a reader, appends what it finds, and commits what is durable.

    A source that is unavailable is tried again for as long as it takes, except
    at the very first open: an engine that cannot start says so. Any other error
    stops this reader and leaves the others, and all routes, running.
    """

    def __init__(
        self,
        config: ReaderConfig,
        log: CommitLog,
        observe: Observer,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._config, self._log = config, log
        self._observe, self._on_failure = observe, on_failure
        self._stopping = threading.Event()
        self._backoff = Backoff()
        self._state, self._problem, self._logged = State.STARTING, "", 0
        self._size, self._moved = 0, time.monotonic()
        # What the last run has logged and not purged is found again by the first poll.
        self._unpurged: int | None = 0
        self._thread = threading.Thread(target=self._run, name=f"reader-{config.name}")

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Ask for the end; what was polled is still appended and committed."""
        self._stopping.set()

    def join(self) -> None:
        """Wait for the end."""
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def halted(self) -> bool:
        """Whether the reader has failed and waits for an operator."""
        return self._state is State.STOPPED

    @property
    def ended(self) -> bool:
        """Whether this feed will append no more."""
        return self._state in (State.ENDED, State.STOPPED)

    @property
    def lost(self) -> bool:
        """Whether its thread is gone although nobody has ended it."""
        return self._thread.ident is not None and not (self._thread.is_alive() or self.ended)

    def hold(self) -> Hold | None:
        """Return from where on the log is needed to recognise what the source still has.

        Entries that were logged and of which the source was not told yet come again
        after a crash; ``None`` when there are none.
        """
        first = None if self._state is State.ENDED else self._unpurged
        return None if first is None else Hold(first - 1, self._config.name, "reader")

    def status(self) -> ReaderStatus:
        """Return what the reader is doing now."""
        name, adaptor = self._config.name, self._config.adaptor
        still = time.monotonic() - self._moved
        return ReaderStatus(
            name, adaptor, self._state, self._logged, self._problem, self._size, still
        )

    def _run(self) -> None:
        try:
            self._read_until_stopped()
            self._state = State.ENDED
            self._observe("reader-ended", reader=self._config.name, logged=self._logged)
        except BaseException as error:  # noqa: BLE001 - a thread must not die silently
            self._halt(error)

    def _halt(self, error: BaseException) -> None:
        """Stop visibly; only what hurts everybody, or a start that failed, ends the engine."""
        starting = self._state is State.STARTING
        ours = isinstance(error, TransporterError)
        problem = str(error) if ours else f"{type(error).__name__}: {error}"
        self._problem = self._config.secrets.hide(problem)
        self._state = State.STOPPED
        self._observe("reader-stopped", reader=self._config.name, problem=self._problem)
        if starting or isinstance(error, LogPoisoned):
            self._on_failure(error)

    def _read_until_stopped(self) -> None:
        while not self._stopping.is_set():
            reader = self._config.cls(self._config.config)
            try:
                reader.open(LogResume(self._log, self._config.name))
                self._opened()
                self._poll_until_stopped(reader)
            except EndOfSource:
                return
            except SourceUnavailable as error:
                if self._state is State.STARTING:
                    raise
                self._retry_later(error)
            finally:
                reader.close()

    def _opened(self) -> None:
        self._state, self._problem = State.RUNNING, ""
        self._observe("reader-opened", reader=self._config.name)

    def _retry_later(self, error: TransporterError) -> None:
        self._state, self._problem = State.RETRYING, self._config.secrets.hide(str(error))
        delay = self._backoff.next()
        self._observe(
            "reader-unavailable",
            reader=self._config.name,
            problem=self._problem,
            retry_in=round(delay, 2),
        )
        self._stopping.wait(delay)

    def _poll_until_stopped(self, reader: Reader) -> None:
        while not self._stopping.is_set():
            batch = reader.poll(POLL)
            self._moved = time.monotonic()
            if self._log_batch(batch) and batch.position is not None:
                # Invariant 1: only now, when the frames are durable.
                reader.commit(batch.position)
            if not self._stopping.is_set():
                self._unpurged = None

    def _log_batch(self, batch: Batch) -> bool:
        """Append all of *batch*; false when it was empty, or the stop came first."""
        parts = list(appendable(_as_batch(batch)))
        if not parts[0].num_rows:
            return False
        if self._unpurged is None:
            # At least so far back: other readers may append before this one does.
            self._unpurged = self._log.durable + 1
        for part in parts[:-1]:
            if not self._append(part, None):
                return False
        # The position goes with the last part: a crash in between repeats, never loses.
        return self._append(parts[-1], batch.position)

    def _append(self, messages: pa.RecordBatch, position: str | None) -> bool:
        """Append, waiting while the disk is full (Invariant 14); false when stopped instead."""
        while True:
            try:
                self._log.append(messages, self._config.name, position)
            except LogFull as error:
                self._state, self._problem = State.WAITING, str(error)
                self._observe("log-full", reader=self._config.name, problem=str(error))
                if self._stopping.wait(self._backoff.next()):
                    return False
            else:
                self._state, self._problem = State.RUNNING, ""
                self._logged += messages.num_rows
                self._size += size_of(messages)
                self._backoff.reset()
                return True


def _as_batch(batch: Batch) -> pa.RecordBatch:
    if isinstance(batch.messages, pa.RecordBatch):
        return batch.messages
    return messages_to_batch(batch.messages)
