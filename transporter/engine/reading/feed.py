"""A feed: one reader, polled in a thread of its own, into the log."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from transporter.adaptor import DeliveredReader, EndOfSource, KeepAliveReader, state_name
from transporter.engine.backoff import Backoff
from transporter.engine.events import ReaderStatus, State
from transporter.engine.latency import add_source_latency
from transporter.engine.meters import LATENCY_BOUNDS, Timings
from transporter.engine.reading.oversized import split_to_loggable
from transporter.engine.reading.reader_resume import LogResume
from transporter.engine.reading.unacknowledged import UnacknowledgedBatches, ranges_of
from transporter.errors import (
    EnvironmentFault,
    LogFull,
    LogPoisoned,
    SourceUnavailable,
    TransporterError,
)
from transporter.log.commit_log import wall_clock
from transporter.message import batch_bytes, messages_to_batch, position_message
from transporter.offsets.retention_holds import Hold
from transporter.pipeline.namespace_filter import without_noops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from transporter.adaptor import Batch, Gauge, Reader
    from transporter.engine.events import Observer
    from transporter.engine.reading.delivery_progress import DeliveryProgress
    from transporter.engine.tracer import Tracer
    from transporter.log.commit_log import CommitLog
    from transporter.pipeline.config import ReaderConfig
    from transporter.pipeline.secrets import Secrets

POLL: Final = 0.5
"""Seconds a poll may wait: how soon a stop is noticed."""
SHORTEST_WAIT: Final = 0.005
"""Seconds that a poll may wait at first while acknowledgements to its source are pending."""
LONGEST_WAIT: Final = 0.1
"""Seconds that it may wait at most: acknowledgements of slow deliveries need not be prompt."""

ROOM_RETRY: Final = 1.0
"""Seconds between two tries while the log is full, at most: room may be there at any moment."""

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
        self._config, self._log = config, log
        self._observe, self._on_failure, self._register_secrets = (
            observe,
            on_failure,
            register_secrets,
        )
        self._deliveries, self._fail_fast = deliveries, fail_fast
        self._resume = LogResume(
            log,
            config.name,
            self._forward_event,
            deliveries,
            self._drop_superseded,
            self._reopen_batches,
            superseded_through,
            on_measure=self._record_measure,
        )
        self._measured: dict[Gauge, float] = {}
        self._latency, self._tracer = Timings(LATENCY_BOUNDS), tracer
        self._shared = deliveries is not None and config.config.shared
        self._term: int | None = None
        self._next_secrets_check = 0.0
        self._stopping, self._finishing = threading.Event(), threading.Event()
        self._wake_event = threading.Event()
        self._paused, self._reopen = paused_behind is not None, False
        self._new_config: ReaderConfig | None = None
        self._restart_lock = threading.Lock()
        self.leaving = False
        """Whether it was removed from the pipeline, and ends."""
        self._leave_deadline, self._has_superseded = 0.0, False
        self._action_lock = threading.Lock()
        """Held during an append or an acknowledgement: see :meth:`try_release`."""
        self._has_polled = False
        # Until something was opened, or put off, an error is of the start, and ends the engine.
        self._is_starting, self._must_load = not late, deliveries is not None
        self._reading_ended, self._abandoned = threading.Event(), False
        self._backoff = Backoff()
        self._state, self._problem, self._logged = State.STARTING, "", 0
        self._size, self._last_progress, self._poll_timeout = 0, time.monotonic(), SHORTEST_WAIT
        self._unacknowledged, self._stale = UnacknowledgedBatches(), False
        self._row_reader: DeliveredReader | None = None
        """The open reader, if it takes acknowledgements of single rows."""
        self._keep_alive_reader: KeepAliveReader | None = None
        """The open reader, if it has something to keep alive."""
        # A tenth of the shortest term: who leads goes on leading while it waits.
        self._wait_interval = LONGEST_WAIT if self._shared else POLL
        # Once every route has delivered what was logged by then, the source gives again what was
        # released from one of them: nothing is taken from a route that delivers.
        self._reopen_after = 0
        # Entries of the last run without an acknowledgement come again, or are acknowledged.
        self._recover_from = 0 if paused_behind is None else paused_behind + 1
        self._first_unacknowledged: int | None = self._recover_from
        self._appending: int | None = None
        self._recovering = True
        self._redelivers_released = False
        self._confirm_changed = threading.Condition()
        self._confirm_requests = self._confirm_answers = 0
        # Until the reader supersedes its entries in the log, or continues with them.
        self._undecided = self._shared
        self._thread = self._create_thread()

    def _create_thread(self) -> threading.Thread:
        # Left behind if its source does not answer: see GRACE.
        name = f"reader-{self._config.name}"
        return threading.Thread(target=self._run, name=name, daemon=True)

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
        self._wake_event.set()

    def pause(self) -> None:
        """Close the reader once all that it has polled is appended, and open it no more."""
        self._paused = True
        self._wake_event.set()

    def resume(self) -> None:
        """End a pause, or the wait for a source that is away."""
        self._paused = False
        self._wake_event.set()

    def restart(self) -> bool:
        """Close the reader in order and open it again, also one that has stopped or ended.

        Returns whether that is under way: one that is just ending cannot be restarted yet.
        """
        with self._restart_lock:  # an operator's restart and a reload may come together
            if not self.ended:
                self._reopen = True
                self._wake_event.set()
                return True
            self._thread.join(GRACE)
            if self._thread.is_alive() or self._stopping.is_set():
                return False
            self._reading_ended.clear()
            self._state, self._problem = State.STARTING, ""
            self._thread = self._create_thread()
            self._thread.start()
            return True

    def configure(self, config: ReaderConfig) -> None:
        """Continue by *config* with the reader reopened, also if it has stopped."""
        self._new_config = config
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
            if not self._abandon_if_late():
                return False
            self._abandon()
        if self._shared and not self._has_superseded:
            self._supersede_rest()
        return True

    def _abandon_if_late(self) -> bool:
        """Abandon a late thread. From then on it appends and acknowledges nothing."""
        if time.monotonic() < self._leave_deadline or not self._action_lock.acquire(blocking=False):
            return False
        self._abandoned = True
        self._action_lock.release()
        return True

    def _supersede_rest(self) -> None:
        # The next leader redelivers it, and no decision is made here any more.
        self._resume.supersede()
        self._has_superseded = True

    @property
    def has_new_config(self) -> bool:
        """Whether new settings are still to be applied."""
        return self._new_config is not None

    def wait_until_read(self) -> None:
        """Wait until nothing more is appended. The source may still wait for deliveries."""
        if self._thread.ident is not None and not self._reading_ended.wait(GRACE):
            self._abandon()

    def finish(self) -> None:
        """Acknowledge the deliveries to the source, and wait for the end."""
        self._finishing.set()
        if self._thread.ident is None or self._abandoned:
            return
        self._thread.join(GRACE)
        if self._thread.is_alive():
            self._abandon()

    def _abandon(self) -> None:
        self._abandoned = True
        problem = f"it did not end within {GRACE:g} s: its source does not answer"
        self._observe("reader-stopped", reader=self._config.name, problem=problem)

    def wait_until_confirmed(self, cancelled: Callable[[], bool]) -> bool:
        """Wait until the reader has confirmed that it leads; false if *cancelled* came first.

        The entries of a reader that no longer leads are superseded by then. Where engines take
        no turns there is nothing to confirm, also while the source is away.
        """
        if not self._shared:
            return True
        with self._confirm_changed:
            self._confirm_requests += 1
            request = self._confirm_requests
            while self._confirm_answers < request and self._can_confirm():
                if cancelled():
                    return False
                self._confirm_changed.wait(SHORTEST_WAIT)
        return True

    def _can_confirm(self) -> bool:
        return not self._has_superseded and (self._thread.is_alive() or self._undecided)

    @property
    def name(self) -> str:
        """The reader's name."""
        return self._config.name

    @property
    def waits_for_delivery(self) -> bool:
        """Whether its source waits for the delivery by every route."""
        return self._deliveries is not None

    @property
    def halted(self) -> bool:
        """Whether the reader has failed and waits for an operator."""
        return self._state is State.STOPPED

    @property
    def settled(self) -> bool:
        """Whether an operator's request is done, and its outcome certain."""
        if self._paused:
            return self._state in (State.PAUSED, State.STOPPED, State.ENDED)
        # Many sources show only to the first poll that they are not as they should be.
        opening = (State.PAUSED, State.STARTING, *(() if self._has_polled else (State.RUNNING,)))
        return not self._reopen and self._state not in opening

    @property
    def ended(self) -> bool:
        """Whether this feed will append no more."""
        return self._state in (State.ENDED, State.STOPPED)

    @property
    def has_died(self) -> bool:
        """Whether its thread is gone without a request to end."""
        return self._thread.ident is not None and not (self._thread.is_alive() or self.ended)

    @property
    def first_unacknowledged(self) -> int | None:
        """The first offset that is not acknowledged to the source, or ``None``.

        Also where engines take no turns, though no other engine would redeliver from there.
        """
        return self._first_unacknowledged if self._shared else None

    def hold(self) -> Hold | None:
        """Return the first offset of the log that is needed to recognise redelivered messages.

        Logged entries without an acknowledgement come again after a crash. ``None`` if there
        are none. A stop changes nothing about that; only the source's end does.
        """
        first = self._first_unacknowledged
        return None if first is None else Hold(first - 1, self._config.name, "reader")

    def releasable_through(self) -> int | None:
        """Return the offset up to which a release of routes makes room; ``None``: anywhere.

        A source with acknowledgements of single rows redelivers released entries, so its reader
        does not hold them. Other readers, and the entries of an earlier run, hold everything.
        """
        if self._redelivers_released:
            return None
        hold = self.hold()
        return None if hold is None else hold.through

    def status(self) -> ReaderStatus:
        """Return the current status."""
        name, adaptor = self._config.name, self._config.adaptor
        still = time.monotonic() - self._last_progress
        waits = self._state is State.RUNNING and self._shared and self._term is None
        state = State.CANDIDATE if waits else self._state
        problem = self._problem or self._describe_wait()
        return ReaderStatus(
            name,
            adaptor,
            state,
            self._logged,
            problem,
            self._size,
            still,
            self._term,
            dict(self._measured),
            self.leaving,
            self._latency.read(),
        )

    def _record_measure(self, gauge: Gauge, value: float | None) -> None:
        if value is None:
            self._measured.pop(gauge, None)
        else:
            self._measured[gauge] = value

    @property
    def _is_full(self) -> bool:
        """Whether ``max_in_flight`` is reached by undelivered entries, without parked ones."""
        return self._unacknowledged.waiting_count >= self._config.max_in_flight

    def _describe_wait(self) -> str:
        """Return why nothing is read, if that is because nothing is delivered."""
        if self._deliveries is None or self._state is not State.RUNNING or not self._is_full:
            return ""
        return (
            f"{self._unacknowledged.waiting_count} entries are logged and not delivered, and "
            f"max_in_flight is {self._config.max_in_flight}: the reader waits for route "
            f"{self._deliveries.slowest_route}"
        )

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
            if self.leaving and self._shared and not self._abandoned:
                self._supersede_rest()  # Invariant 10
        except BaseException as error:  # noqa: BLE001 - a thread must not die silently
            # For an abandoned thread this was reported before, and the log may be closed.
            if not self._abandoned:
                self._halt(error)
        finally:
            self._reading_ended.set()

    def _halt(self, error: BaseException) -> None:
        """Stop visibly. Only a fault of the log, or a failed start, ends the engine."""
        ours = isinstance(error, TransporterError)
        problem = str(error) if ours else f"{type(error).__name__}: {error}"
        self._problem = self._config.secrets.hide(problem)
        self._state = State.STOPPED
        self._observe("reader-stopped", reader=self._config.name, problem=self._problem)
        if self._is_starting or isinstance(error, LogPoisoned):
            self._on_failure(error)
        elif self._undecided:
            # No decision will follow, and no route may wait for one (Invariant 15).
            try:
                self._resume.supersede()
            except TransporterError as failure:
                self._on_failure(failure)

    def _read_until_stopped(self) -> None:
        while not self._stopping.is_set():
            if self._paused:
                self._wait_while_paused()
                continue
            if self._reopen:
                self._state, self._problem, self._reopen = State.STARTING, "", False
                self._backoff.reset()
            self._apply_new_config()
            if not self._renew_secrets():
                continue
            reader = self._config.cls(self._config.config)
            # Checked once: isinstance with a protocol costs more than an idle poll.
            self._row_reader = reader if isinstance(reader, DeliveredReader) else None
            self._keep_alive_reader = reader if isinstance(reader, KeepAliveReader) else None
            try:
                if self._must_load and self._row_reader is None:
                    self._load_undelivered()
                self._must_load = False
                reader.open(self._resume)
                self._report_opened()
                self._poll_until_ended(reader)
                self._end_reading()
                self._acknowledge_rest(reader)
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

    def _apply_new_config(self) -> None:
        if (settings := self._new_config) is not None:
            self._config = settings
            if self._new_config is settings:  # or newer ones have come
                self._new_config = None

    def _renew_secrets(self) -> bool:
        """Read secret files again before a connection is made; wait if that fails."""
        try:
            config = self._config.renew_secrets()
        except EnvironmentFault as error:
            if self._is_starting:
                raise
            self._retry_later(error)
            return False
        if config is not self._config:
            self._config = config
            self._register_secrets(config.secrets)
            self._observe("reader-secrets-renewed", reader=config.name)
        return True

    def _wait_while_paused(self) -> None:
        """Wait for the end of a pause, or of the engine, with the reader closed.

        A closed reader does not lead, so another engine does. Its undelivered entries come again
        from the next leader, and no route waits for a decision.
        """
        self._is_starting, self._row_reader, self._keep_alive_reader = False, None, None
        if self._shared:
            # Invariant 10: the next leader redelivers it, and no decision is made here any more.
            self._resume.supersede()
        self._state, self._problem = State.PAUSED, ""
        self._observe("reader-paused", reader=self._config.name)
        while self._paused and not self._stopping.is_set():
            self._confirm_leadership()
            self._wait(self._wait_interval)
        if not self._paused:
            self._state = State.STARTING
            self._backoff.reset()
            self._observe("reader-resumed", reader=self._config.name)

    def _wait(self, seconds: float) -> None:
        """Wait up to *seconds*, or until a request arrives."""
        self._wake_event.wait(seconds)
        # Cleared before anything is looked at again, so no call is missed.
        self._wake_event.clear()

    def _refresh_candidate(self) -> None:
        """Reopen a reader that cannot lead after its secret files have changed.

        Its elector connects by itself, with the settings of the open.
        """
        now = time.monotonic()
        if not self._shared or self._term is not None or now < self._next_secrets_check:
            return
        self._next_secrets_check = now + _SECRETS_CHECK
        if self._config.is_outdated():
            raise _Reopen

    def _load_undelivered(self) -> None:
        """Open the entries of earlier runs, for a reader with acknowledgement by position only."""
        parts = list[tuple[int, int]]()
        for position, entries in self._resume.undelivered():
            parts += ranges_of(entries.offsets)
            if position is not None and parts:
                self._unacknowledged.add(position, parts)
                parts = []
        if parts and self._resume.position is not None:
            # Nothing else up to that position is left.
            self._unacknowledged.add(self._resume.position, parts)

    def _report_opened(self) -> None:
        self._is_starting = self._has_polled = False
        self._state, self._problem = State.RUNNING, ""
        self._observe("reader-opened", reader=self._config.name)

    def _end_reading(self) -> None:
        self._state = State.ENDED
        self._reading_ended.set()
        self._observe("reader-ended", reader=self._config.name, logged=self._logged)

    def _retry_later(self, error: TransporterError) -> None:
        if self._stopping.is_set():
            # Entries that could not be acknowledged come again, and are recognised then.
            return
        self._is_starting = False
        self._state, self._problem = State.RETRYING, self._config.secrets.hide(str(error))
        delay = self._backoff.next()
        self._observe(
            "reader-unavailable",
            reader=self._config.name,
            problem=self._problem,
            retry_in=round(delay, 2),
        )
        self._wait(delay)

    def _poll_until_ended(self, reader: Reader) -> None:
        by_rows = self._deliveries is not None and self._row_reader is not None
        while not self._stopping.is_set():
            if self._paused or self._reopen:
                # All polled messages are appended, and acknowledged where that is possible.
                raise _Reopen
            self._run_due_work(reader)
            self._refresh_candidate()
            if self._deliveries is not None:
                self._reopen_for_released(self._deliveries)
            if self._is_full:
                self._has_polled = True
                self._wait_for_delivery(self._wait_interval)
                continue
            try:
                batch = reader.poll(
                    POLL if self._unacknowledged.first_undelivered is None else self._poll_timeout
                )
            except EndOfSource:
                # Nothing comes again, so nothing has to be recognised.
                self._recovering = False
                self._hold_from(None)
                return
            self._last_progress, self._has_polled = time.monotonic(), True
            self._redelivers_released = by_rows
            self._backoff.reset()
            self._poll_timeout = min(2 * self._poll_timeout, LONGEST_WAIT)
            self._process_batch(reader, batch)

    def _process_batch(self, reader: Reader, batch: Batch) -> None:
        """Append all of *batch*; keep it open, or acknowledge it at once because it is durable."""
        self._stale = False
        # A full log whose readers all wait for room must not be held for redelivered messages.
        self._recovering = False
        self._hold_from(None)
        messages = self._loggable(batch)
        if messages is None:
            return
        parts = split_to_loggable(messages)
        logged = self._append_all(reader, parts, batch)
        if batch.position is not None and logged:
            self._open_or_commit(reader, batch.position, logged, whole=len(logged) == len(parts))
        if self._deliveries is not None or not self._stopping.is_set():
            self._hold_from(None)

    def _loggable(self, batch: Batch) -> pa.RecordBatch | None:
        """Return the messages to append for *batch*: for a new position alone, one of our own."""
        messages = _as_batch(batch)
        if messages.num_rows:
            return messages
        if batch.position is None or batch.position == self._resume.position:
            return None
        return messages_to_batch([position_message(self._config.name)])

    def _hold_from(self, appending: int | None) -> None:
        """Publish the first unacknowledged offset: of open batches, and of the one *appending*.

        Waiting routes check it again (Invariant 9).
        """
        self._appending = appending
        oldest = self._recover_from if self._recovering else None
        pending = (
            each
            for each in (self._unacknowledged.first_undelivered, appending, oldest)
            if each is not None
        )
        before, self._first_unacknowledged = self._first_unacknowledged, min(pending, default=None)
        if before != self._first_unacknowledged and self._deliveries is not None:
            self._deliveries.notify_acknowledged()

    def _open_or_commit(
        self, reader: Reader, position: str, logged: list[tuple[int, int]], *, whole: bool
    ) -> None:
        if self._deliveries is None:
            if whole:
                # Invariant 1: only now, when the frames are durable.
                reader.commit(position)
        elif whole or self._row_reader is not None:
            # Single rows can be acknowledged also of a batch that a stop has cut short.
            self._unacknowledged.add(position, logged)
            self._poll_timeout = SHORTEST_WAIT

    def _append_all(
        self, reader: Reader, parts: list[pa.RecordBatch], batch: Batch
    ) -> list[tuple[int, int]]:
        """Return the offsets of the parts, or of the first ones if the stop came first.

        Empty if they were superseded meanwhile.
        """
        logged = list[tuple[int, int]]()
        for part in parts:
            # The position goes with the last part: a crash in between repeats, never loses.
            position = batch.position if part is parts[-1] else None
            begun = logged[0][0] if logged else None
            found = self._append(reader, part, position, batch, begun)
            if found is None:
                break
            logged.append(found)
            if position is not None and batch.state is not None:
                self._resume.states.drop_others(state_name(batch.state))
        return [] if self._stale else logged

    def _append(
        self,
        reader: Reader,
        messages: pa.RecordBatch,
        position: str | None,
        batch: Batch,
        begun: int | None,
    ) -> tuple[int, int] | None:
        """Append, waiting while the disk is full (Invariant 14).

        ``None`` if the stop came first, or the batch was superseded meanwhile. The part of the
        batch that is logged already begins at *begun*.
        """
        while True:
            # At least so far back, because other readers may append first. Again after each wait,
            # because a waiting reader must not hold entries that they logged meanwhile.
            self._hold_from(self._log.durable + 1 if begun is None else begun)
            try:
                with self._action_lock:
                    if self._abandoned:
                        return None
                    if position is not None and batch.state is not None:
                        self._resume.states.keep(state_name(batch.state), batch.state)
                    found = self._log.append(messages, self._config.name, position, batch.term)
            except LogFull as error:
                self._state, self._problem = State.WAITING, str(error)
                self._observe("log-full", reader=self._config.name, problem=str(error))
                self._wait_for_room(reader)
                if self._stopping.is_set():
                    return None
                if self._stale:
                    # Nothing waits for room any more.
                    self._state, self._problem = State.RUNNING, ""
                    return None
            else:
                self._state, self._problem = State.RUNNING, ""
                self._logged += without_noops(messages).num_rows
                self._resume.last = found[1]
                self._size += batch_bytes(messages)
                add_source_latency(self._latency, messages.column("timestamp"), wall_clock())
                if self._tracer is not None:
                    self._tracer.record_logged(self._config.name, messages, found[0])
                self._backoff.reset()
                return found

    def _wait_for_room(self, reader: Reader) -> None:
        """Wait until the next try, a stop, or until nothing is to be appended any more."""
        ends = time.monotonic() + min(self._backoff.next(), ROOM_RETRY)
        while not self._stale and (left := ends - time.monotonic()) > 0:
            if self._stopping.wait(min(left, self._wait_interval)):
                return
            # A route may wait for it that alone can make room.
            self._run_due_work(reader)

    def _run_due_work(self, reader: Reader) -> None:
        """Run the work that is due between two polls, or while polling pauses."""
        if self._keep_alive_reader is not None:
            self._keep_alive_reader.keep_alive()
        if self._deliveries is None:
            return
        # A reader that waits for a route is not stuck itself.
        self._last_progress = time.monotonic()
        self._confirm_leadership()
        self._acknowledge(reader, self._deliveries)

    def _acknowledge(self, reader: Reader, deliveries: DeliveryProgress) -> None:
        """Acknowledge the new deliveries of every route to the source."""
        with self._action_lock:
            if self._abandoned:
                return  # It may be acknowledged without a removed route, too.
            # In this order: an entry is parked before a watermark passes it.
            through = deliveries.through
            given_up = self._unacknowledged.given_up
            # A source that takes positions in order gives no single row again: its reader has held
            # what it was not told of, so that none of it was released.
            released = () if self._row_reader is None else deliveries.released
            delivered = self._unacknowledged.deliver(through, deliveries.parked, released)
        whole = self._unacknowledged.take_whole_position()
        if self._row_reader is not None:
            for position, rows in delivered:
                self._row_reader.delivered(position, rows)
        elif whole is not None:
            reader.commit(whole)
        if delivered:
            self._poll_timeout = SHORTEST_WAIT
        self._recovering = self._recovering and not delivered
        # Also if only parked entries are left: they are not acknowledged, and no wait is for them.
        self._hold_from(self._appending)
        if self._unacknowledged.given_up > given_up:
            self._reopen_after = self._log.durable

    def _reopen_for_released(self, deliveries: DeliveryProgress) -> None:
        """Let the source redeliver released entries, once that costs no other route anything."""
        if self._unacknowledged.given_up and deliveries.through >= self._reopen_after:
            raise _Reopen

    def _confirm_leadership(self) -> None:
        """Let the reader confirm that it leads, if a route has requested it."""
        if (request := self._confirm_requests) > self._confirm_answers:
            if self._row_reader is not None and self._row_reader.confirm() is False:
                return
            self._undecided = False
            with self._confirm_changed:
                self._confirm_answers = request
                self._confirm_changed.notify_all()

    def _acknowledge_rest(self, reader: Reader) -> None:
        """Acknowledge deliveries to the source until the engine ends, or nothing is left."""
        while len(self._unacknowledged) and not self._finishing.is_set():
            self._run_due_work(reader)
            self._wait_for_delivery(SHORTEST_WAIT)
        self._run_due_work(reader)

    def _wait_for_delivery(self, timeout: float) -> None:
        if (
            self._deliveries is not None
            and (first := self._unacknowledged.first_undelivered) is not None
        ):
            self._deliveries.wait(first, timeout)
        else:
            self._finishing.wait(timeout)

    def _drop_superseded(self) -> None:
        """Drop entries that the source redelivers, with those that are not appended yet."""
        self._stale, self._undecided, self._recovering = True, False, False
        self._unacknowledged.clear()
        self._hold_from(None)

    def _reopen_batches(self, batches: Iterable[tuple[str, Sequence[int]]]) -> None:
        """Wait for the delivery of the logged entries, in place of all open batches."""
        self._undecided = self._recovering = False
        self._unacknowledged.clear()
        for position, offsets in batches:
            self._unacknowledged.add(position, list(ranges_of(offsets)))
        self._hold_from(None)


def _as_batch(batch: Batch) -> pa.RecordBatch:
    if isinstance(batch.messages, pa.RecordBatch):
        return batch.messages
    return messages_to_batch(batch.messages)
