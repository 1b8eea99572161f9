"""A feed: one reader, polled in a thread of its own, into the log."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from transporter.adaptor import EndOfSource, KeepAliveReader
from transporter.engine.events import ReaderStatus, State
from transporter.engine.reading.acknowledgement import (
    LONGEST_WAIT,
    SHORTEST_WAIT,
    SourceAcknowledgement,
)
from transporter.engine.reading.batch_appender import BatchAppender
from transporter.engine.reading.reader_condition import ActionGate, ReaderCondition
from transporter.engine.reading.reader_resume import LogResume
from transporter.engine.thread_heartbeat import Heartbeat
from transporter.errors import EnvironmentFault, LogPoisoned, SourceUnavailable, TransporterError
from transporter.offsets.retention_holds import Hold

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.adaptor import Gauge, Reader
    from transporter.engine.events import Observer
    from transporter.engine.reading.delivery_progress import DeliveryProgress
    from transporter.engine.tracer import Tracer
    from transporter.log.commit_log import CommitLog
    from transporter.pipeline.config import ReaderConfig
    from transporter.pipeline.secrets import Secrets

POLL: Final = 0.5
"""Seconds a poll may wait: how soon a stop is noticed."""

GRACE: Final = 5.0
"""Seconds for which a stop waits for a source that does not answer."""

_SECRETS_CHECK: Final = 5.0
"""Seconds between two looks at the secret files of a reader that waits to lead."""

LEADING: Final = ("leader-acquired", "leader-refreshed")
"""The event of a reader that has begun a term."""


class _Reopen(Exception):
    """The reader is to be reopened, without an error."""


class Feed:
    """Polls a reader, appends its messages, and acknowledges them to its source.

    Messages are acknowledged when they are durable or, with ``release: delivered``, when every
    route has delivered them. An unavailable source is retried without limit, also at the very
    first open, unless that is to *fail fast*. Any other error stops this reader and leaves the
    others and all routes running. At the very first open it ends the engine, because the
    settings are wrong.

    The feed is the reader's life: requests of operators, the thread, the open reader. What is
    logged, and what its source may forget, have owners of their own.
    """

    def __init__(  # noqa: PLR0913 - each is another part of the engine
        self,
        config: ReaderConfig,
        log: CommitLog,
        observe: Observer,
        on_failure: Callable[[BaseException], None],
        deliveries: DeliveryProgress | None = None,
        superseded_through: Callable[[str], int] | None = None,
        register_secrets: Callable[[Secrets], None] = lambda _: None,
        *,
        fail_fast: bool = False,
        late: bool = False,
        paused_behind: int | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """Prepare to read by *config*. With *deliveries* the source waits for the routes.

        *superseded_through* is for :class:`LogResume`. *register_secrets* is called with the
        secrets of files that were read again. With *fail_fast* a source that is away at the very
        first open ends the engine. One that comes *late*, while the engine runs, never does. A
        reader that is paused from the start needs nothing of the log up to *paused_behind*,
        which is ``None`` if it is not paused. *tracer* follows single entries.
        """
        self._observe, self._on_failure = observe, on_failure
        self._deliveries, self._register_secrets = deliveries, register_secrets
        self._fail_fast, self._shared = fail_fast, deliveries is not None and config.config.shared
        # A tenth of the shortest term: who leads goes on leading while it waits.
        self._wait_interval = LONGEST_WAIT if self._shared else POLL
        self._stopping, self._finishing = threading.Event(), threading.Event()
        self._reading_ended, self._restart_lock = threading.Event(), threading.Lock()
        self.leaving = False
        """Whether it was removed from the pipeline, and ends."""
        self._leave_deadline, self._has_superseded = 0.0, False
        # Until something was opened, or put off, an error is of the start, and ends the engine.
        self._is_starting, self._must_load, self._has_polled = not late, True, False
        self._measured: dict[Gauge, float] = {}
        self._term: int | None = None
        self._next_secrets_check, self._last_progress = 0.0, time.monotonic()
        self._keep_alive_reader: KeepAliveReader | None = None
        self._gate, self._heartbeat = ActionGate(), Heartbeat()
        self._condition = ReaderCondition(config, observe, paused=paused_behind is not None)
        acknowledgement = self._acknowledgement = SourceAcknowledgement(
            log, deliveries, self._gate, shared=self._shared, paused_behind=paused_behind
        )
        self._resume = LogResume(
            log,
            config.name,
            self._forward_event,
            deliveries,
            acknowledgement.drop_superseded,
            acknowledgement.reopen_batches,
            superseded_through,
            on_measure=self._record_measure,
        )
        self._appender = BatchAppender(
            log,
            self._resume,
            acknowledgement,
            self._condition,
            self._gate,
            self._stopping,
            self._run_due_work,
            wait_interval=self._wait_interval,
            tracer=tracer,
        )
        self._thread = self._create_thread()

    def _create_thread(self) -> threading.Thread:
        # Left behind if its source does not answer: see GRACE.
        return threading.Thread(target=self._run, name=f"reader-{self.name}", daemon=True)

    def start(self) -> None:
        """Begin to read, before any route begins to deliver."""
        self.prepare()
        self.run()

    def prepare(self) -> None:
        """Load the state of earlier runs, before any route begins to deliver."""
        self._resume.begin()

    def run(self) -> None:
        """Begin to read, prepared."""
        self._thread.start()

    def stop(self) -> None:
        """Request the end of reading. Polled messages are still appended."""
        self._stopping.set()
        self._condition.wake()

    def pause(self) -> None:
        """Close the reader once all that it has polled is appended, and open it no more."""
        self._condition.pause()

    def resume(self) -> None:
        """End a pause, or the wait for a source that is away."""
        self._condition.resume()

    def restart(self) -> bool:
        """Close the reader in order and open it again, also one that has stopped or ended.

        Returns whether that is under way: one that is just ending cannot be restarted yet.
        """
        with self._restart_lock:  # an operator's restart and a reload may come together
            if not self.ended:
                self._condition.reopen()
                return True
            self._thread.join(GRACE)
            if self._thread.is_alive() or self._stopping.is_set():
                return False
            self._reading_ended.clear()
            self._condition.begin()
            self._thread = self._create_thread()
            self._thread.start()
            return True

    def configure(self, config: ReaderConfig) -> None:
        """Continue by *config* with the reader reopened, also if it has stopped."""
        self._condition.configure(config)
        self.restart()

    def leave(self) -> None:
        """End as at a stop, while the engine continues without this reader.

        Deliveries so far are acknowledged to its source, and routes pass entries that other
        engines will deliver.
        """
        self.leaving, self._leave_deadline = True, time.monotonic() + GRACE
        self._finishing.set()
        self.stop()

    def try_release(self) -> bool:
        """Return whether a removed reader has ended, or hangs and is abandoned.

        Its undelivered entries are superseded by then (Invariant 10).
        """
        if not self.leaving:
            return False
        if self._thread.is_alive():
            if time.monotonic() < self._leave_deadline or not self._gate.try_close():
                return False
            self._abandon()
        if self._shared and not self._has_superseded:
            self._supersede_rest()
        return True

    def _supersede_rest(self) -> None:
        # The next leader redelivers it, and no decision is made here any more.
        self._resume.supersede()
        self._has_superseded = True

    def wait_until_read(self) -> None:
        """Wait until nothing more is appended. The source may still wait for deliveries."""
        if self._thread.ident is not None and not self._reading_ended.wait(GRACE):
            self._abandon()

    def finish(self) -> None:
        """Acknowledge the deliveries to the source, and wait for the end."""
        self._finishing.set()
        if self._thread.ident is None or self._gate.is_closed:
            return
        self._thread.join(GRACE)
        if self._thread.is_alive():
            self._abandon()

    def _abandon(self) -> None:
        self._gate.close()
        problem = f"it did not end within {GRACE:g} s: its source does not answer"
        self._condition.report("reader-stopped", problem=problem)

    def wait_until_confirmed(self, cancelled: Callable[[], bool]) -> bool:
        """Wait until the reader has confirmed that it leads; false if *cancelled* came first.

        The entries of a reader that no longer leads are superseded by then. Where engines take
        no turns there is nothing to confirm, also while the source is away.
        """
        return not self._shared or self._acknowledgement.wait_until_confirmed(
            cancelled, self._can_confirm
        )

    def _can_confirm(self) -> bool:
        undecided = self._acknowledgement.is_undecided
        return not self._has_superseded and (self._thread.is_alive() or undecided)

    @property
    def name(self) -> str:
        """The reader's name."""
        return self._condition.config.name

    @property
    def waits_for_delivery(self) -> bool:
        """Whether its source waits for the delivery by every route."""
        return self._deliveries is not None

    @property
    def has_new_config(self) -> bool:
        """Whether new settings are still to be applied."""
        return self._condition.has_new_config

    @property
    def halted(self) -> bool:
        """Whether the reader has failed and waits for an operator."""
        return self._condition.state is State.STOPPED

    @property
    def settled(self) -> bool:
        """Whether an operator's request is done, and its outcome certain."""
        state = self._condition.state
        if self._condition.paused:
            return state in (State.PAUSED, State.STOPPED, State.ENDED)
        # Many sources show only to the first poll that they are not as they should be.
        opening = (State.PAUSED, State.STARTING, *(() if self._has_polled else (State.RUNNING,)))
        return not self._condition.must_reopen and state not in opening

    @property
    def ended(self) -> bool:
        """Whether this feed will append no more."""
        return self._condition.state in (State.ENDED, State.STOPPED)

    @property
    def has_died(self) -> bool:
        """Whether its thread is gone without a request to end."""
        return self._thread.ident is not None and not (self._thread.is_alive() or self.ended)

    @property
    def is_hung(self) -> bool:
        """Whether a call of the open reader has not returned for minutes."""
        is_running = self._condition.state is State.RUNNING and not self.leaving
        return is_running and self._heartbeat.is_overdue

    @property
    def first_unacknowledged(self) -> int | None:
        """The first offset that is not acknowledged to the source, or ``None``.

        Also where engines take no turns, though no other engine would redeliver from there.
        """
        return self._acknowledgement.first_unacknowledged if self._shared else None

    def hold(self) -> Hold | None:
        """Return the first offset of the log that is needed to recognise redelivered messages.

        Logged entries without an acknowledgement come again after a crash. ``None`` if there
        are none. A stop changes nothing about that; only the source's end does.
        """
        first = self._acknowledgement.first_unacknowledged
        return None if first is None else Hold(first - 1, self.name, "reader")

    @property
    def loses_released(self) -> bool:
        """Whether its source waits for deliveries, and does not give released entries again.

        A source with acknowledgements of single rows does, once it is open.
        """
        return self.waits_for_delivery and not self._acknowledgement.redelivers_released

    def release_limit(self) -> Hold | None:
        """Return its hold, if it also bounds a release of routes. ``None``: nothing does.

        A reader whose source gives released entries again does not hold them. Other readers, and
        the entries of an earlier run, hold everything.
        """
        return None if self._acknowledgement.redelivers_released else self.hold()

    def status(self) -> ReaderStatus:
        """Return the current status."""
        config, state = self._condition.config, self._condition.state
        problem = self._condition.problem or self._describe_wait()
        if state is State.RUNNING and self._shared and self._term is None:
            state = State.CANDIDATE
        return ReaderStatus(
            config.name,
            config.adaptor,
            state,
            self._appender.logged,
            problem,
            self._appender.size,
            time.monotonic() - self._last_progress,
            self._term,
            dict(self._measured),
            self.leaving,
            self._appender.latency.read(),
        )

    @property
    def _is_full(self) -> bool:
        """Whether ``max_in_flight`` is reached by undelivered entries, without parked ones."""
        return self._acknowledgement.waiting_count >= self._condition.config.max_in_flight

    def _describe_wait(self) -> str:
        """Return why nothing is read, if that is because nothing is delivered."""
        is_running = self._condition.state is State.RUNNING
        if self._deliveries is None or not is_running or not self._is_full:
            return ""
        return (
            f"{self._acknowledgement.waiting_count} entries are logged and not delivered, and "
            f"max_in_flight is {self._condition.config.max_in_flight}: the reader waits for route "
            f"{self._deliveries.slowest_route}"
        )

    def _record_measure(self, gauge: Gauge, value: float | None) -> None:
        if value is None:
            self._measured.pop(gauge, None)
        else:
            self._measured[gauge] = value

    def _forward_event(self, event: str, **details: Any) -> None:  # noqa: ANN401 - plain values
        """Forward the reader's events, and derive from them whether it leads."""
        if event.startswith("leader-"):
            self._term = details["term"] if event in LEADING else None
        self._observe(event, **details)

    def _run(self) -> None:
        try:
            self._read_until_stopped()
            if not self._reading_ended.is_set():
                self._end_reading()
            if self.leaving and self._shared and not self._gate.is_closed:
                self._supersede_rest()  # Invariant 10
        except BaseException as error:  # noqa: BLE001 - a thread must not die silently
            # For an abandoned thread this was reported before, and the log may be closed.
            if not self._gate.is_closed:
                self._halt(error)
        finally:
            self._reading_ended.set()

    def _halt(self, error: BaseException) -> None:
        """Stop visibly. Only a fault of the log, or a failed start, ends the engine."""
        ours = isinstance(error, TransporterError)
        self._condition.fail(str(error) if ours else f"{type(error).__name__}: {error}")
        if self._is_starting or isinstance(error, LogPoisoned):
            self._on_failure(error)
        elif self._acknowledgement.is_undecided:
            # No decision will follow, and no route may wait for one (Invariant 15).
            try:
                self._resume.supersede()
            except TransporterError as failure:
                self._on_failure(failure)

    def _read_until_stopped(self) -> None:
        while not self._stopping.is_set():
            if self._condition.paused:
                self._wait_while_paused()
                continue
            self._condition.begin_open()
            if not self._renew_secrets():
                continue
            config = self._condition.config
            reader = config.cls(config.config)
            self._acknowledgement.use(reader)
            # Checked once: isinstance with a protocol costs more than an idle poll.
            self._keep_alive_reader = reader if isinstance(reader, KeepAliveReader) else None
            try:
                self._load_once()
                reader.open(self._resume)
                self._report_opened()
                self._poll_until_ended(reader)
                self._end_reading()
                self._acknowledge_rest()
            except SourceUnavailable as error:
                if self._fail_fast and self._is_starting:
                    raise
                self._retry_later(error)
            except _Reopen:
                continue
            else:
                return
            finally:
                reader.close()
                # A closed reader does not lead.
                self._measured, self._term = {}, None

    def _load_once(self) -> None:
        """Open the entries of earlier runs, for a reader with acknowledgement by position only."""
        by_position = self._deliveries is not None and self._acknowledgement.row_reader is None
        if self._must_load and by_position:
            self._acknowledgement.load_undelivered(self._resume)
        self._must_load = False

    def _renew_secrets(self) -> bool:
        """Read secret files again before a connection is made; wait if that fails."""
        try:
            config = self._condition.config.renew_secrets()
        except EnvironmentFault as error:
            if self._is_starting:
                raise
            self._retry_later(error)
            return False
        if config is not self._condition.config:
            self._condition.config = config
            self._register_secrets(config.secrets)
            self._condition.report("reader-secrets-renewed")
        return True

    def _wait_while_paused(self) -> None:
        """Wait for the end of a pause, or of the engine, with the reader closed.

        A closed reader does not lead, so another engine does. Its undelivered entries come again
        from the next leader, and no route waits for a decision.
        """
        self._is_starting, self._keep_alive_reader = False, None
        self._acknowledgement.leave_reader()
        if self._shared:
            # Invariant 10: the next leader redelivers it, and no decision is made here any more.
            self._resume.supersede()
        self._condition.note_paused()
        while self._condition.paused and not self._stopping.is_set():
            self._acknowledgement.confirm_leadership()
            self._condition.wait(self._wait_interval)
        if not self._condition.paused:
            self._condition.begin()
            self._condition.report("reader-resumed")

    def _refresh_candidate(self) -> None:
        """Reopen a reader that cannot lead after its secret files have changed.

        Its elector connects by itself, with the settings of the open.
        """
        now = time.monotonic()
        if not self._shared or self._term is not None or now < self._next_secrets_check:
            return
        self._next_secrets_check = now + _SECRETS_CHECK
        if self._condition.config.is_outdated():
            raise _Reopen

    def _report_opened(self) -> None:
        self._is_starting = self._has_polled = False
        self._heartbeat.beat()
        self._condition.note_running()
        self._condition.report("reader-opened")

    def _end_reading(self) -> None:
        self._condition.state = State.ENDED
        self._reading_ended.set()
        self._condition.report("reader-ended", logged=self._appender.logged)

    def _retry_later(self, error: TransporterError) -> None:
        # Entries that could not be acknowledged come again, and are recognised then.
        if not self._stopping.is_set():
            self._is_starting = False
            self._condition.retry_later(error)

    def _poll_until_ended(self, reader: Reader) -> None:
        acknowledgement = self._acknowledgement
        by_rows = self._deliveries is not None and acknowledgement.row_reader is not None
        while not self._stopping.is_set():
            if self._condition.paused or self._condition.must_reopen:
                # All polled messages are appended, and acknowledged where that is possible.
                raise _Reopen
            self._run_due_work()
            self._refresh_candidate()
            if acknowledgement.must_reopen:
                raise _Reopen
            if self._is_full:
                self._has_polled = True
                acknowledgement.wait_for_delivery(self._wait_interval, self._finishing)
                continue
            waits = acknowledgement.first_undelivered is not None
            try:
                batch = reader.poll(acknowledgement.poll_timeout if waits else POLL)
            except EndOfSource:
                # Nothing comes again, so nothing has to be recognised.
                acknowledgement.end_recovery()
                return
            self._last_progress, self._has_polled = time.monotonic(), True
            acknowledgement.redelivers_released = by_rows
            acknowledgement.slow_down()
            self._condition.note_success()
            self._appender.append(batch)
            if self._deliveries is not None or not self._stopping.is_set():
                acknowledgement.hold_from(None)

    def _run_due_work(self) -> None:
        """Run the work that is due between two polls, or while polling pauses."""
        self._heartbeat.beat()
        if self._keep_alive_reader is not None:
            self._keep_alive_reader.keep_alive()
        if self._deliveries is not None:
            # A reader that waits for a route is not stuck itself.
            self._last_progress = time.monotonic()
            self._acknowledgement.confirm_leadership()
            self._acknowledgement.acknowledge()

    def _acknowledge_rest(self) -> None:
        """Acknowledge deliveries to the source until the engine ends, or nothing is left."""
        while self._acknowledgement.count and not self._finishing.is_set():
            self._run_due_work()
            self._acknowledgement.wait_for_delivery(SHORTEST_WAIT, self._finishing)
        self._run_due_work()
