"""A route: its own way through the log, in a thread of its own."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Final

from transporter.engine.backoff import Backoff
from transporter.engine.cutter import Cutter
from transporter.engine.events import RouteStatus, State
from transporter.engine.judge import Action, Judge, Verdict
from transporter.engine.parking import Parking
from transporter.engine.protocol import (
    Failure,
    FailureKind,
    Opened,
    OpenFailed,
    Outcome,
    Output,
    Proceed,
    Progress,
    Retry,
    Slice,
    WorkerSpec,
)
from transporter.errors import (
    Corrupt,
    EntriesLost,
    EnvironmentFault,
    HostFailed,
    LogFull,
    OffsetRefused,
)
from transporter.log.commit_log import wall_clock
from transporter.log.reader import LogReader
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
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
        offsets: Mapping[str, OffsetLog],
        carrier: Carrier,
        observe: Observer,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Prepare the route of *config*; *offsets* are those of all routes, by name."""
        self._config, self._folder = config, folder
        self._log, self._offsets, self._carrier = log, offsets[config.name], carrier
        self._observe, self._on_failure = observe, on_failure
        self._reader = LogReader(log.directory)
        self._stopping, self._draining = threading.Event(), threading.Event()
        ahead = offsets[config.after] if config.after else None
        hurried = self._in_a_hurry
        self._cutter = Cutter(config, log, self._reader, self._offsets, ahead, hurried)
        self._parking = Parking(config, log, self._reader, self._offsets, wall_clock)
        self._judge = Judge(config, log, self._offsets, self._parking, self._cutter, observe)
        self._backoff = Backoff(*config.retry.backoff)
        self._announced: int | None = None
        self._state, self._problem = State.STARTING, ""
        self._delivered = self._skipped = 0
        self._thread = threading.Thread(target=self._run, name=f"route-{config.name}")

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def drain(self) -> None:
        """Ask for the end once everything in the log is delivered."""
        self._draining.set()
        self._carrier.wake()

    def stop(self) -> None:
        """Ask for the end at once; the next start repeats a slice that was in flight."""
        self._stopping.set()
        self._carrier.wake()

    def join(self, timeout: float | None = None) -> bool:
        """Wait up to *timeout* seconds; return whether the route has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _in_a_hurry(self) -> bool:
        return self._stopping.is_set() or self._draining.is_set()

    @property
    def halted(self) -> bool:
        """Whether the route waits for an operator."""
        return self._state is State.STOPPED

    @property
    def caught_up(self) -> bool:
        """Whether everything in the log is settled, and no replay or retry is asked for."""
        state = self._offsets.state
        settled = state.watermark >= self._log.durable
        return settled and state.replay is None and not state.retries

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
            parked=len(self._parking),
            problem=self._problem,
        )

    def _run(self) -> None:
        try:
            self._serve_until_ended()
            self._observe("route-ended", route=self._config.name, **self._progress())
            if not self.halted:
                self._state = State.ENDED
        except BaseException as error:  # noqa: BLE001 - a thread must not die silently
            self._state, self._problem = State.STOPPED, str(error)
            self._on_failure(error)
        finally:
            self._reader.close()

    def _serve_until_ended(self) -> None:
        try:
            while not self._should_end():
                self._connect_and_serve()
        except (Corrupt, EntriesLost, EnvironmentFault, OffsetRefused) as error:
            # Invariant 3: the route that needs what is damaged halts there; the others go on.
            self._follow(self._judge.not_its_fault(Failure.of(error)))

    def _should_end(self) -> bool:
        return (
            self._stopping.is_set()
            or self.halted
            or (self._draining.is_set() and self._nothing_to_do())
        )

    def _nothing_to_do(self) -> bool:
        return not self._offsets.state.retries and self._cutter.next(0) is None

    def _should_not_wait(self) -> bool:
        """Tell whether a worker would find nothing to do: then nobody waits for Spark."""
        return self._stopping.is_set() or (self._draining.is_set() and self.caught_up)

    def _connect_and_serve(self) -> None:
        try:
            worker = self._carrier.connect(self._spec(), self._should_not_wait)
            if worker is not None:
                with worker:
                    self._serve(worker)
        except (HostFailed, LogFull) as error:
            # Invariant 14: an entry that finds no room to be parked waits for it.
            self._retry_later(str(error))
        except (EOFError, ConnectionError):
            self._observe("worker-lost", route=self._config.name, **self._progress())
            if self._state is not State.RUNNING and not self.halted:
                self._retry_later("the worker died while it opened its writer")

    def _spec(self) -> WorkerSpec:
        config = self._config
        return WorkerSpec(
            address=self._carrier.address,
            authkey=self._carrier.authkey,
            route=config.name,
            shard=0,
            shards=1,
            epoch=self._log.epoch,
            generation=self._offsets.state.generation,
            log_directory=str(self._log.directory),
            log_id=self._log.log_id,
            namespace=config.namespace,
            steps=config.steps,
            one_per_key=config.max_in_flight_per_key is not None,
            writer=config.writer.adaptor,
            settings=config.writer.settings,
            folder=str(self._folder),
            slice_timeout=config.slice_timeout,
            memory=config.worker_memory,
        )

    def _serve(self, worker: Connection) -> None:
        """Deliver slice after slice through *worker* until it or the route ends."""
        self._state = State.STARTING
        match self._answer(worker):
            case Opened(stored):
                self._state, self._problem = State.RUNNING, ""
                self._adopt(stored)
            case OpenFailed(failure):
                self._follow(self._judge.not_its_fault(failure))
                return
            case None:
                return
        while not (self._stopping.is_set() or self.halted):
            retry = self._parking.next_retry()
            asked = None if retry is not None else self._cutter.next(IDLE)
            if retry is not None:
                self._retry(worker, retry)
            elif asked is not None:
                self._deliver(worker, asked)
            elif self._draining.is_set():
                return

    def _deliver(self, worker: Connection, asked: Slice) -> None:
        screened = self._parking.screen(asked)
        if screened is None:
            self._follow(self._judge.no_room(asked.first))
            return
        worker.send(screened)
        outcome = self._outcome(worker, lambda announced: self._judge.died(screened, announced))
        if outcome is not None:
            self._delivered += outcome.delivered
            self._skipped += outcome.skipped
            self._follow(self._judge.judge(screened, outcome))

    def _retry(self, worker: Connection, offset: int) -> None:
        """Deliver a parked entry that an operator wants delivered."""
        worker.send(Retry(offset, self._offsets.state.generation))
        outcome = self._outcome(worker, lambda _: self._judge.died_with_parked(offset))
        if outcome is not None:
            self._delivered += outcome.delivered
            self._follow(self._judge.judge_parked(offset, outcome.failure))

    def _outcome(self, worker: Connection, died: Callable[[int | None], Verdict]) -> Outcome | None:
        """Return the worker's outcome; ``None`` when the route must stop without it.

        Raises ``EOFError`` when the worker is gone, after *died* was asked what to
        make of it, unless its host went with it.
        """
        self._announced = None
        try:
            answer = self._answer(worker)
        except (EOFError, ConnectionError):
            if not self._carrier.host_was_lost(self._config.name, 0):
                self._follow(died(self._announced))
            raise EOFError from None
        return answer if isinstance(answer, Outcome) else None

    def _follow(self, verdict: Verdict) -> None:
        """Do what the judge says."""
        match verdict.action:
            case Action.GO:
                self._state, self._problem = State.RUNNING, ""
                self._backoff.reset()
            case Action.WAIT:
                self._retry_later(verdict.problem)
            case Action.HALT:
                self._halt(verdict)

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
                case Progress(offset):
                    self._announced = offset
                    worker.send(Proceed())
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
            self._follow(self._judge.not_its_fault(_ahead(stored, self._log.durable)))
            return
        if state.replay is not None:
            self._offsets.advance_replay(min(stored.offset, state.replay.last))
        if self._offsets.state.replay is None and stored.offset > self._offsets.state.watermark:
            part = Range(self._offsets.state.next_live(), stored.offset)
            self._offsets.settle(part, self._log.durable)

    def _halt(self, verdict: Verdict) -> None:
        """Wait for an operator; everybody can see it (Invariant 15)."""
        self._offsets.sync()
        offset, problem = verdict.offset, verdict.problem
        place = f"offset {offset}: " if offset is not None else ""
        self._state, self._problem = State.STOPPED, f"{place}{problem}"
        self._observe(
            "route-stopped",
            route=self._config.name,
            offset=offset,
            problem=problem,
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
