"""A route: its own way through the log, in a thread of its own."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Final

from transporter.engine.backoff import Backoff
from transporter.engine.events import RouteStatus, State
from transporter.engine.protocol import (
    Failure,
    FailureKind,
    Opened,
    OpenFailed,
    Outcome,
    Output,
    Slice,
    WorkerSpec,
)
from transporter.errors import HostFailed
from transporter.log.reader import LogReader
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from pathlib import Path

    from transporter.adaptor import StoredOffset
    from transporter.engine.carrier import Carrier
    from transporter.engine.events import Observer
    from transporter.log.commit_log import CommitLog
    from transporter.offsets.offset_log import OffsetLog
    from transporter.pipeline.config import RouteConfig

IDLE: Final = 0.5
"""Seconds an idle route waits before it looks whether it should stop."""


class Route:
    """Cuts slices, has a worker deliver them, and writes down what was settled.

    Slices of a route follow one another; a failing route never holds another
    one back (Invariant 15).
    """

    def __init__(
        self,
        config: RouteConfig,
        folder: Path,
        log: CommitLog,
        offsets: OffsetLog,
        carrier: Carrier,
        observe: Observer,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._config, self._folder = config, folder
        self._log, self._offsets, self._carrier = log, offsets, carrier
        self._observe, self._on_failure = observe, on_failure
        self._reader = LogReader(log.directory)
        self._stopping, self._draining = threading.Event(), threading.Event()
        self._backoff = Backoff()
        self._state, self._problem = State.STARTING, ""
        self._delivered = self._skipped = 0
        self._thread = threading.Thread(target=self._run, name=f"route-{config.name}")

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def drain(self) -> None:
        """Ask for the end once everything in the log is delivered."""
        self._draining.set()

    def stop(self) -> None:
        """Ask for the end at once; the next start repeats a slice that was in flight."""
        self._stopping.set()
        self._carrier.wake()

    def join(self, timeout: float | None = None) -> bool:
        """Wait up to *timeout* seconds; return whether the route has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def halted(self) -> bool:
        """Whether the route waits for an operator."""
        return self._state is State.STOPPED

    def status(self) -> RouteStatus:
        """Return what the route is doing now."""
        watermark = self._offsets.state.watermark
        return RouteStatus(
            name=self._config.name,
            adaptor=self._config.writer.adaptor,
            state=self._state,
            delivered=self._delivered,
            skipped=self._skipped,
            watermark=watermark,
            lag=max(0, self._log.durable - watermark),
            problem=self._problem,
        )

    def _run(self) -> None:
        try:
            while not self._should_end():
                self._connect_and_serve()
            self._observe("route-ended", route=self._config.name, **self._progress())
            if not self.halted:
                self._state = State.ENDED
        except BaseException as error:  # noqa: BLE001 - a thread must not die silently
            self._state, self._problem = State.STOPPED, str(error)
            self._on_failure(error)
        finally:
            self._reader.close()

    def _should_end(self) -> bool:
        return (
            self._stopping.is_set()
            or self.halted
            or (self._draining.is_set() and self._next_slice(0) is None)
        )

    def _connect_and_serve(self) -> None:
        try:
            worker = self._carrier.connect(self._spec(), self._stopping)
            if worker is not None:
                with worker:
                    self._serve(worker)
        except HostFailed as error:
            self._retry_later(str(error))
        except (EOFError, ConnectionError):
            self._retry_later("the worker has died; another one takes its place")

    def _spec(self) -> WorkerSpec:
        return WorkerSpec(
            address=self._carrier.address,
            authkey=self._carrier.authkey,
            route=self._config.name,
            shard=0,
            shards=1,
            epoch=self._log.epoch,
            generation=self._offsets.state.generation,
            log_directory=str(self._log.directory),
            log_id=self._log.log_id,
            namespace=self._config.namespace,
            writer=self._config.writer.adaptor,
            settings=self._config.writer.settings,
            folder=str(self._folder),
        )

    def _serve(self, worker: Connection) -> None:
        """Deliver slice after slice through *worker* until it or the route ends."""
        match self._answer(worker):
            case Opened(stored):
                self._adopt(stored)
            case OpenFailed(failure):
                self._failed(failure)
                return
            case None:
                return
        self._state, self._problem = State.RUNNING, ""
        while not (self._stopping.is_set() or self.halted):
            asked = self._next_slice(IDLE)
            if asked is not None:
                self._deliver(worker, asked)
            elif self._draining.is_set():
                return

    def _next_slice(self, wait: float) -> Slice | None:
        """Cut what comes next, waiting up to *wait* seconds; ``None`` when there is nothing."""
        state = self._offsets.state
        if state.replay is not None:
            first, end = state.replay.next, state.replay.last
        else:
            first = state.next_live()
            end = self._log.wait_beyond(first - 1, wait)
            # What an operator has acked further on is not delivered.
            end = min([end, *(part.first - 1 for part in state.above)])
        if end < first:
            return None
        config = self._config
        last = self._reader.bound(first, end, config.slice_rows, config.slice_bytes)
        return Slice(first, last, state.generation)

    def _deliver(self, worker: Connection, asked: Slice) -> None:
        worker.send(asked)
        outcome = self._answer(worker)
        if not isinstance(outcome, Outcome):
            return
        self._settle(asked, outcome)
        self._delivered += outcome.delivered
        self._skipped += outcome.skipped
        if outcome.failure is not None:
            self._failed(outcome.failure)
        else:
            self._state, self._problem = State.RUNNING, ""
            self._backoff.reset()

    def _settle(self, asked: Slice, outcome: Outcome) -> None:
        """Write down the settled prefix of *asked*, and nothing more (Invariant 5)."""
        if outcome.through < asked.first:
            return
        if self._offsets.state.replay is not None:
            self._offsets.advance_replay(outcome.through)
        else:
            part = Range(asked.first, outcome.through)
            self._offsets.settle(part, self._log.durable, outcome.namespaces)

    def _answer(self, worker: Connection) -> object:
        """Return the worker's next answer; ``None`` when the route must stop without it."""
        while True:
            while not worker.poll(IDLE):
                if self._stopping.is_set():
                    return None
            match worker.recv():
                case Output(text):
                    sys.stdout.write(text)
                    sys.stdout.flush()
                case answer:
                    return answer

    def _adopt(self, stored: StoredOffset | None) -> None:
        """Settle what the sink itself remembers: it may know more than the offset log."""
        state = self._offsets.state
        if stored is None or (
            stored.log_id,
            stored.route,
            stored.generation,
            stored.shards,
        ) != (self._log.log_id, self._config.name, state.generation, state.shards):
            return
        if stored.offset > self._log.durable:
            self._failed(_ahead(stored, self._log.durable))
            return
        if state.replay is not None:
            self._offsets.advance_replay(min(stored.offset, state.replay.last))
        if self._offsets.state.replay is None and stored.offset > self._offsets.state.watermark:
            part = Range(self._offsets.state.next_live(), stored.offset)
            self._offsets.settle(part, self._log.durable)

    def _failed(self, failure: Failure) -> None:
        if failure.kind.retriable:
            self._retry_later(failure.text)
            return
        self._offsets.sync()
        place = f"offset {failure.offset}: " if failure.offset is not None else ""
        self._state, self._problem = State.STOPPED, f"{place}{failure.text}"
        self._observe(
            "route-stopped",
            route=self._config.name,
            offset=failure.offset,
            kind=failure.kind.value,
            problem=failure.text,
            **self._progress(),
        )

    def _retry_later(self, problem: str) -> None:
        if self._stopping.is_set():
            return
        self._state, self._problem = State.RETRYING, problem
        delay = self._backoff.next()
        self._observe(
            "route-retrying",
            route=self._config.name,
            problem=problem,
            retry_in=round(delay, 2),
            **self._progress(),
        )
        self._stopping.wait(delay)

    def _progress(self) -> dict[str, int]:
        return {"watermark": self._offsets.state.watermark, "delivered": self._delivered}


def _ahead(stored: StoredOffset, durable: int) -> Failure:
    return Failure(
        FailureKind.FAULT,
        f"the sink has stored offset {stored.offset}, but the log ends at {durable}: "
        "the log was replaced by an older copy; restore it, or empty the sink",
    )
