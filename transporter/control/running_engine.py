"""Operations on a running engine's own objects."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as TooLong
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from transporter.control import operator_actions, requests
from transporter.control.action_offsets import next_entry
from transporter.control.metadata import read_metadata
from transporter.control.offline_status import route_progress
from transporter.control.wire import request_name
from transporter.engine.event_ring import MOST
from transporter.engine.events import State
from transporter.engine.readiness import readiness_report
from transporter.errors import ActionRefused, EngineUnreachable, UnknownName
from transporter.log.reader import LogReader
from transporter.offsets.offset_log import declared_routes, read_state
from transporter.pipeline.reload_changes import describe_changes, preview, reread, settings_diff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from transporter.audit import Operator
    from transporter.control.requests import Request
    from transporter.engine.engine import Engine
    from transporter.engine.events import ReaderStatus, RouteStatus
    from transporter.engine.meters import Histogram
    from transporter.engine.reading.feed import Feed
    from transporter.engine.routing.route import Route
    from transporter.offsets.offset_log import OffsetLog
    from transporter.offsets.state import RouteState

T = TypeVar("T")

NOTICE: Final = 5.0
"""Seconds that an action waits for its outcome."""
SLICE: Final = 30.0
"""Seconds that an action waits for the slice that a route is at."""
_POLL: Final = 0.05
_STEP_TEXTS: Final = {
    "delivered": "is delivered; the route stays paused",
    "parked": "is parked",
    "skipped": "is skipped",
    "failed": "has failed",
    None: "is being delivered",
}
_WAITING: Final = (State.RETRYING, State.WAITING, State.STOPPED)
"""States in which a resume has an effect without a pause."""
_NOT_REVIVING: Final = (requests.Ack, requests.Pause, requests.NoteParked)
"""Requests after which a halted route has nothing else to try, unless they have moved it."""
_NO_CHANGES: Final[Mapping[str, Any]] = {
    "routes": [],
    "readers": [],
    **{part: {"readers": [], "routes": []} for part in ("added", "removed")},
}
_ELSEWHERE: Final = "it was acked, released or superseded meanwhile, or its replay was cancelled"


class RunningEngine:
    """Operates *engine*; implements ``requests.Operations``. Thread-safe.

    Actions that need an idle route run on the route's own thread between two slices. All
    others run at once, however long a slice takes.
    """

    def __init__(self, engine: Engine, environ: Mapping[str, str]) -> None:
        """Take variables of a file that is read again from *environ*."""
        self._engine, self._environ = engine, dict(environ)
        self._route_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._reload_lock, self._reader_lock = threading.Lock(), threading.Lock()

    def perform(
        self, request: Request, operator: Operator, is_abandoned: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        """Perform *request*; see :class:`~transporter.control.requests.Operations`."""
        if isinstance(request, requests.ReadRequest):
            return self._read(request, is_abandoned)
        if self._engine.stopping:
            raise EngineUnreachable("the engine is stopping; nothing was changed")
        match request:
            case requests.Reload(dry_run=True):
                done = self._preview_reload()
            case requests.Reload():
                done = self._reload(request, operator)
            case requests.Forget():
                done = self._forget_route(request, operator)
            case requests.SkipParked():
                # Without the lock: it may have to wait for a slice.
                route, offsets = self._find_route(request.route)
                done = self._skip_parked(route, offsets, request, operator)
            case requests.Replay(dry_run=True):
                done = self._preview_replay(request, is_abandoned)
            case requests.Step():
                done = self._step_route(request, operator, is_abandoned)
            case requests.PauseReader() | requests.ResumeReader() | requests.RestartReader():
                done = self._operate_reader(request, operator)
            case _:
                done = self._perform_on_route(request, operator)
        self._report(request, operator)
        return done

    def _read(
        self, request: requests.ReadRequest, is_abandoned: Callable[[], bool]
    ) -> dict[str, Any]:
        """Answer a request that changes nothing, also while the engine stops."""
        match request:
            case requests.Status():
                return running_status(self._engine)
            case requests.Readiness():
                patience = self._engine.pipeline.observe.unready_after
                return readiness_report(self._engine.status(), patience)
            case requests.LogMetadata():
                log = self._engine.log
                on_progress = partial(self._refuse_abandoned, is_abandoned)
                return read_metadata(log.directory, log.durable, request, on_progress)
            case requests.Events(after, level, route, most):
                if not 1 <= most <= MOST:
                    raise ActionRefused(f"{most} events are not one answer; request 1 to {MOST}")
                return self._engine.events.read(after, level, route, most)
            case requests.History(route):
                return self._engine.history.to_json(route)

    def _perform_on_route(
        self, request: requests.OffsetRequest | requests.Replay, operator: Operator
    ) -> dict[str, Any]:
        route, offsets = self._find_route(request.route)
        with self._route_locks[request.route]:
            done = self._perform_locked(route, offsets, request, operator)
        if isinstance(request, requests.Pause):
            # Once it stands between two slices it has seen the pause.
            noticed = _result_within(route.submit(lambda: True), NOTICE)
            return done | {"in_effect": noticed is True}
        return done

    def _preview_replay(
        self, request: requests.Replay, is_abandoned: Callable[[], bool]
    ) -> dict[str, Any]:
        route, offsets = self._find_route(request.route)
        log, upserts = self._engine.log, _has_upserts(route)
        return operator_actions.preview_replay(
            log.directory,
            log.durable,
            request,
            offsets.state,
            upserts=upserts,
            on_progress=partial(self._refuse_abandoned, is_abandoned),
        )

    def _refuse_abandoned(self, is_abandoned: Callable[[], bool], _: int) -> None:
        """End a long read-only request whose client has gone; a stop waits for none."""
        if self._engine.stopping or is_abandoned():
            raise EngineUnreachable("the engine is stopping; nothing was changed")

    def _perform_locked(
        self,
        route: Route,
        offsets: OffsetLog,
        request: requests.OffsetRequest | requests.Replay,
        operator: Operator,
    ) -> dict[str, Any]:
        log = self._engine.log
        before = offsets.state.next_offset()
        waits = route.status().state in _WAITING
        match request:
            case requests.Replay():
                done = operator_actions.begin_replay(
                    log, offsets, request, operator, upserts=_has_upserts(route)
                )
            case _:
                done = operator_actions.perform_simple(
                    log, offsets, request, operator, lambda: route.parking.store
                )
        if isinstance(request, requests.Resume) and waits:
            done |= {"done": "resumed"}
        # A route that has halted tries again when it has something else to try.
        moved = offsets.state.next_offset() != before
        if moved or not isinstance(request, _NOT_REVIVING):
            route.submit(route.revive)
        return done

    def _step_route(
        self, request: requests.Step, operator: Operator, is_abandoned: Callable[[], bool]
    ) -> dict[str, Any]:
        route, offsets = self._find_route(request.route)
        state = _paused_state(offsets)
        with LogReader(self._engine.log.directory) as reader:
            durable, namespace = self._engine.log.durable, route.config.namespace
            # Without the lock: it may have to look through all of the log.
            on_progress = partial(self._refuse_abandoned, is_abandoned)
            through = next_entry(reader, durable, state, namespace, on_progress)
        with self._route_locks[request.route]:
            now = _paused_state(offsets)
            if (now.next_offset(), now.generation) != (state.next_offset(), state.generation):
                raise ActionRefused(f"route {offsets.route} has advanced meanwhile; step again")
            operator_actions.step_route(offsets, through, request, operator)
        return self._await_step(route, offsets, through)

    def _await_step(self, route: Route, offsets: OffsetLog, through: int) -> dict[str, Any]:
        """Wait for the outcome of the entry at *through*, which a step lets out."""
        generation, deadline = offsets.state.generation, time.monotonic() + NOTICE
        revived = route.submit(route.revive)

        def is_settled(state: RouteState) -> bool:
            return state.next_offset() > through or state.generation != generation

        while not offsets.wait_for(is_settled, _POLL) and time.monotonic() < deadline:
            if revived.done() and route.halted:
                break
        outcome, reason = self._step_outcome(route, offsets, through, generation)
        reason = self._engine.redact(reason)
        place = f"offset {through}"
        shown = reason.removeprefix(f"{place}: ")
        text = f"{place} {_STEP_TEXTS[outcome]}" + (f": {shown}" if shown else "")
        fields = {"through": through, "settled": is_settled(offsets.state)}
        return operator_actions.action_result(
            offsets, text, outcome=outcome, reason=reason, **fields
        )

    def _step_outcome(
        self, route: Route, offsets: OffsetLog, through: int, generation: int
    ) -> tuple[str | None, str]:
        """Return the outcome of a stepped entry and the reason; ``None`` while it is pending."""
        if offsets.state.generation != generation:
            return "failed", "a replay began before it was delivered; step again"
        if offsets.state.next_offset() <= through:
            problem = route.status().problem
            return ("failed" if problem else None), problem
        with suppress(EngineUnreachable):
            found = _result_within(route.submit(partial(route.outcome_of, through)), NOTICE)
            if found is not None:
                return found.outcome or "skipped", found.reason if found.outcome else _ELSEWHERE
        return None, ""

    def _skip_parked(
        self, route: Route, offsets: OffsetLog, request: requests.SkipParked, operator: Operator
    ) -> dict[str, Any]:
        def skip() -> dict[str, Any]:
            done = operator_actions.skip_parked(offsets, route.parking.store, request, operator)
            route.revive()
            return done

        done = _result_within(route.submit(skip), SLICE)
        if done is None:
            raise EngineUnreachable(
                f"route {request.route} has been delivering one slice for {SLICE:.0f} s; "
                "nothing was changed; try again after it"
            )
        return done

    def _operate_reader(
        self, request: requests.ReaderRequest, operator: Operator
    ) -> dict[str, Any]:
        engine, name = self._engine, request.reader
        if (feed := engine.feed(name)) is None:
            known = ", ".join(each.name for each in engine.pipeline.readers)
            raise UnknownName(f"there is no reader {name!r} in the running pipeline ({known})")
        with self._reader_lock:
            self._refuse_ended(feed, request)
            if isinstance(request, requests.RestartReader):
                done = self._restart_reader(feed, request, operator)
            else:
                waits = feed.status().state in _WAITING
                done = operator_actions.set_reader_paused(
                    engine.paused_readers, engine.audit, request, operator
                )
                if isinstance(request, requests.ResumeReader) and waits:
                    done |= {"done": "resumed"}
                (feed.pause if done["paused"] else feed.resume)()
        deadline = time.monotonic() + NOTICE
        while not (in_effect := feed.settled) and time.monotonic() < deadline:
            time.sleep(_POLL)
        status = feed.status()
        fields = {"state": status.state.value, "problem": engine.redact(status.problem)}
        return done | fields | {"in_effect": in_effect}

    def _refuse_ended(self, feed: Feed, request: requests.ReaderRequest) -> None:
        """Raise unless *request* can be done to a reader that has stopped, or ended."""
        status = feed.status()
        if status.state is State.ENDED:
            raise ActionRefused(f"reader {feed.name} has ended: its source has no more messages")
        if feed.halted and not isinstance(request, requests.RestartReader):
            raise ActionRefused(
                f"reader {feed.name} has stopped: {self._engine.redact(status.problem)}; fix "
                "the cause, then run 'transporter reader restart'"
            )

    def _restart_reader(
        self, feed: Feed, request: requests.RestartReader, operator: Operator
    ) -> dict[str, Any]:
        if feed.name in self._engine.paused_readers.names:
            raise ActionRefused(f"reader {feed.name} is paused; resume it, which opens it again")
        with self._engine.audit.change(
            "reader restart", operator, reader=feed.name, reason=request.reason
        ):
            if not feed.restart():
                raise ActionRefused(f"reader {feed.name} is still stopping; try again")
        return {"reader": feed.name, "done": "restarted", "paused": False}

    def _forget_route(self, request: requests.Forget, operator: Operator) -> dict[str, Any]:
        if self._engine.route(request.route) is not None:
            raise ActionRefused(
                f"route {request.route} is running; remove it from the pipeline file, run "
                "'transporter reload', then forget it"
            )
        state = read_state(self._engine.log.directory, request.route)
        details = {"watermark": state.watermark, "reason": request.reason}
        with self._engine.audit.change("route forget", operator, route=request.route, **details):
            self._engine.forget(request.route)
        return {"route": request.route, "done": "forgotten; it no longer pins the log"}

    def _reload(self, request: requests.Reload, operator: Operator) -> dict[str, Any]:
        with self._reload_lock:
            running = self._engine.pipeline
            declared = declared_routes(self._engine.log.directory)
            wanted = reread(running, self._environ, declared)
            changed = describe_changes(running, wanted)
            details = {"file": str(running.file), "reason": request.reason} | changed
            with self._engine.audit.change("reload", operator, **details):
                taken_up = self._engine.reconfigure(wanted)
        deadline = time.monotonic() + NOTICE
        pending = [
            name
            for name, future in taken_up
            if not _is_done_within(future, max(0.0, deadline - time.monotonic()))
        ]
        while (leaving := self._engine.release_ended()) and time.monotonic() < deadline:
            time.sleep(_POLL)
        opened = [*changed["readers"], *changed["added"]["readers"]]
        return {
            "file": str(running.file),
            "done": "reloaded",
            "pending": pending,
            "leaving": leaving,
            "problems": self._reader_problems(opened, deadline),
            **{part: changed[part] for part in ("routes", "readers", "added", "removed")},
        }

    def _preview_reload(self) -> dict[str, Any]:
        """Return what a reload would do, and each reason for which it would be refused."""
        engine = self._engine
        with self._reload_lock:
            running = engine.pipeline
            declared = declared_routes(engine.log.directory)
            wanted, problems = preview(running, self._environ, declared)
            refusals = [(each.problem, each.file, each.line) for each in problems]
            if wanted is not None:
                try:
                    engine.refuse_leaving(wanted)
                except ActionRefused as error:
                    refusals.append((str(error), str(running.file), 0))
        changed = describe_changes(running, wanted) if wanted is not None else _NO_CHANGES
        return {
            "file": str(running.file),
            "done": "the reload would be refused" if refusals else "would be reloaded",
            "refusals": [
                {"problem": engine.redact(text), "file": file, "line": line}
                for text, file, line in refusals
            ],
            "diff": settings_diff(running, wanted) if wanted is not None else [],
            **{part: changed[part] for part in ("routes", "readers", "added", "removed")},
        }

    def _reader_problems(self, readers: Sequence[str], deadline: float) -> dict[str, str]:
        """Wait for *readers* that are being opened; return the problems by reader.

        Those that are paused, or not open by the *deadline*, have no problem yet.
        """
        feeds = [feed for name in readers if (feed := self._engine.feed(name)) is not None]
        while not all(feed.settled for feed in feeds) and time.monotonic() < deadline:
            time.sleep(_POLL)
        found = {feed.name: self._reader_problem(feed) for feed in feeds}
        return {name: self._engine.redact(text) for name, text in found.items() if text}

    def _reader_problem(self, feed: Feed) -> str:
        status = feed.status()
        if feed.has_new_config and status.state is not State.PAUSED:
            return status.problem or "it has not applied its settings yet"
        return status.problem

    def _find_route(self, name: str) -> tuple[Route, OffsetLog]:
        found = self._engine.route(name)
        if found is None:
            known = ", ".join(each.name for each in self._engine.pipeline.routes)
            raise UnknownName(f"there is no route {name!r} in the running pipeline ({known})")
        return found

    def _report(self, request: Request, operator: Operator) -> None:
        if getattr(request, "dry_run", False):
            return
        self._engine.observe(
            "operator-acted",
            route=getattr(request, "route", ""),
            reader=getattr(request, "reader", ""),
            action=request_name(request),
            reason=getattr(request, "reason", ""),
            **operator.event_fields(),
        )


def running_status(engine: Engine) -> dict[str, Any]:
    """Return the current status of *engine* as plain values."""
    status = engine.status()
    report = readiness_report(status, engine.pipeline.observe.unready_after)
    return {
        "running": True,
        "version": engine.version,
        "started_at": engine.started_at,
        "url": engine.url,
        "ready": report["ready"],
        "reasons": report["reasons"],
        "dead": list(status.dead),
        "pid": os.getpid(),
        "pipeline": engine.pipeline.name,
        "stopping": engine.stopping,
        "directory": status.directory,
        "last": status.last,
        "size": status.size,
        "used": status.used,
        "max_bytes": status.max_bytes,
        "syncs": _histogram_fields(status.syncs),
        "spark": status.spark,
        "readers": [_reader_status(each) for each in status.readers],
        "routes": list(_route_statuses(engine, status.routes)),
    }


def _reader_status(status: ReaderStatus) -> dict[str, Any]:
    fields = asdict(status) | {"state": status.state.value, "leader": _leadership(status)}
    del fields["latency"]  # for metrics, which have it as a histogram
    return fields


def _leadership(status: ReaderStatus) -> bool | None:
    """Return whether a reader leads its source, or ``None`` where no engines take turns."""
    if status.term is not None:
        return True
    return False if status.state is State.CANDIDATE else None


def _route_statuses(engine: Engine, routes: Iterable[RouteStatus]) -> Iterator[dict[str, Any]]:
    """Yield the status of each route. A route that a reload has removed may be gone."""
    for each in routes:
        if (offsets := engine.offsets(each.name)) is not None:
            yield _route_status(each, offsets.state)


def _route_status(status: RouteStatus, state: RouteState) -> dict[str, Any]:
    fields = {name: getattr(status, name) for name in _STATUS_FIELDS} | {
        "state": status.state.value
    }
    fields["waiting"] = asdict(status.patience) if status.patience else None
    fields["still"] = status.still if _could_deliver(status, state) else 0.0
    fields["slices"] = _histogram_fields(status.slices)
    return fields | route_progress(state)


def _could_deliver(status: RouteStatus, state: RouteState) -> bool:
    """Return whether a route has entries to deliver, and no operator to wait for."""
    has_work = status.lag > 0 or status.replaying or bool(state.retries)
    return has_work and status.state not in (State.PAUSED, State.STOPPED, State.ENDED)


def _histogram_fields(histogram: Histogram) -> dict[str, Any]:
    """Return how many took up to each of ``bounds`` seconds, and last longer, as plain values."""
    return {
        "bounds": list(histogram.bounds),
        "counts": list(histogram.counts),
        "seconds": histogram.total,
    }


_STATUS_FIELDS: Final = (
    *("name", "adaptor", "delivered", "skipped", "lag", "parked", "limited", "problem", "leaving"),
)


def _paused_state(offsets: OffsetLog) -> RouteState:
    """Return the state of a paused route; raise :class:`ActionRefused` for others."""
    state = offsets.state
    if not state.paused:
        raise ActionRefused(f"route {offsets.route} is not paused; pause it, then step")
    return state


def _has_upserts(route: Route) -> bool:
    """Return whether the route's sink keeps the newest value of a key, as its writer declares."""
    return bool(route.config.writer.config.upserts)


def _result_within(answer: Future[T], seconds: float) -> T | None:
    """Return the result of *answer* within *seconds*, or ``None`` if it was withdrawn."""
    with suppress(TooLong):
        return _wait_for_result(answer, seconds)
    # A call that has begun cannot be withdrawn.
    return None if answer.cancel() else _wait_for_result(answer, None)


def _wait_for_result(answer: Future[T], seconds: float | None) -> T:
    try:
        return answer.result(seconds)
    except CancelledError as error:
        raise EngineUnreachable("the engine is stopping; nothing was changed") from error


def _is_done_within(answer: Future[None], seconds: float) -> bool:
    with suppress(TooLong, CancelledError):
        answer.result(seconds)
        return True
    return False
