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

from transporter.control import requests, route_actions
from transporter.control.metadata import metadata
from transporter.control.offline_status import progress
from transporter.control.step_target import next_entry
from transporter.engine.events import State
from transporter.errors import ActionRefused, EngineUnreachable, UnknownName
from transporter.log.reader import LogReader
from transporter.offsets.offset_log import declared_routes, read_state
from transporter.pipeline.reload_changes import describe_changes, reread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from transporter.audit import Operator
    from transporter.control.requests import Request
    from transporter.engine.engine import Engine
    from transporter.engine.events import Observer, ReaderStatus, RouteStatus
    from transporter.engine.reading.feed import Feed
    from transporter.engine.routing.route import Route
    from transporter.offsets.offset_log import OffsetLog
    from transporter.offsets.state import RouteState

    ReaderRequest = requests.PauseReader | requests.ResumeReader | requests.RestartReader

T = TypeVar("T")

NOTICE: Final = 5.0
"""Seconds that an action waits for its outcome."""
SLICE: Final = 30.0
"""Seconds that an action waits for the slice that a route is at."""
_LOOK: Final = 0.05
_STEPPED: Final = {
    "delivered": "is delivered, nothing else",
    "parked": "is parked",
    "skipped": "is skipped",
    "failed": "has failed",
    None: "is being delivered",
}
_ELSEWHERE: Final = "it was acked, released or superseded meanwhile, or its replay was cancelled"


class RunningEngine:
    """Operates *engine*; implements ``requests.Operations``. Thread-safe.

    Actions that need an idle route run on the route's own thread between two slices. All
    others run at once, however long a slice takes.
    """

    def __init__(self, engine: Engine, environ: Mapping[str, str], observe: Observer) -> None:
        """Take variables of a file that is read again from *environ*."""
        self._engine, self._environ, self._observe = engine, dict(environ), observe
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._reloading, self._operating_readers = threading.Lock(), threading.Lock()

    def perform(
        self, request: Request, by: Operator, gone: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        """Perform *request*; see :class:`~transporter.control.requests.Operations`."""
        if isinstance(request, requests.Status):
            return running_status(self._engine)
        if isinstance(request, requests.LogMetadata):
            log = self._engine.log
            return metadata(log.directory, log.durable, request)
        if self._engine.stopping:
            raise EngineUnreachable("the engine is stopping; nothing was changed")
        match request:
            case requests.Reload():
                done = self._reload(request, by)
            case requests.Forget():
                done = self._forget(request, by)
            case requests.SkipParked():
                # Without the lock: it may have to wait for a slice.
                route, offsets = self._running(request.route)
                done = self._skip(route, offsets, request, by)
            case requests.Replay(dry_run=True):
                done = self._preview(request, gone)
            case requests.Step():
                done = self._step(request, by, gone)
            case requests.PauseReader() | requests.ResumeReader() | requests.RestartReader():
                done = self._operate_reader(request, by)
            case _:
                done = self._act(request, by)
        self._tell(request, by)
        return done

    def _act(self, request: Any, by: Operator) -> dict[str, Any]:  # noqa: ANN401 - the rest of Request
        route, offsets = self._running(request.route)
        with self._locks[request.route]:
            done = self._done(route, offsets, request, by)
        if isinstance(request, requests.Pause):
            # Once it stands between two slices it has seen the pause.
            noticed = _within(route.submit(lambda: True), NOTICE)
            return done | {"in_effect": noticed is True}
        return done

    def _preview(self, request: requests.Replay, gone: Callable[[], bool]) -> dict[str, Any]:
        route, offsets = self._running(request.route)
        log, upserts = self._engine.log, _upserts(route)
        return route_actions.preview(
            log.directory,
            log.durable,
            request,
            offsets.state,
            upserts=upserts,
            seen=partial(self._refuse_unwanted, gone),
        )

    def _refuse_unwanted(self, gone: Callable[[], bool], _: int) -> None:
        """End a long read-only request whose client has gone; a stop waits for none."""
        if self._engine.stopping or gone():
            raise EngineUnreachable("the engine is stopping; nothing was changed")

    def _done(
        self,
        route: Route,
        offsets: OffsetLog,
        request: Any,  # noqa: ANN401 - as above
        by: Operator,
    ) -> dict[str, Any]:
        log = self._engine.log
        before = offsets.state.next_offset()
        match request:
            case requests.Replay():
                done = route_actions.replay(log, offsets, request, by, upserts=_upserts(route))
            case _:
                done = route_actions.simple(log, offsets, request, by, lambda: route.parking.store)
        # A route that has halted tries again when it has something else to try.
        moved = offsets.state.next_offset() != before
        if moved or not isinstance(request, requests.Ack | requests.Pause):
            route.submit(route.revive)
        return done

    def _step(
        self, request: requests.Step, by: Operator, gone: Callable[[], bool]
    ) -> dict[str, Any]:
        route, offsets = self._running(request.route)
        state = _paused(offsets)
        with LogReader(self._engine.log.directory) as reader:
            durable, namespace = self._engine.log.durable, route.config.namespace
            # Without the lock: it may have to look through all of the log.
            seen = partial(self._refuse_unwanted, gone)
            through = next_entry(reader, durable, state, namespace, seen)
        with self._locks[request.route]:
            now = _paused(offsets)
            if (now.next_offset(), now.generation) != (state.next_offset(), state.generation):
                raise ActionRefused(f"route {offsets.route} has moved meanwhile; step again")
            route_actions.step(offsets, through, request, by)
        return self._stepped(route, offsets, through)

    def _stepped(self, route: Route, offsets: OffsetLog, through: int) -> dict[str, Any]:
        """Wait for the outcome of the entry at *through*, which a step lets out."""
        generation, deadline = offsets.state.generation, time.monotonic() + NOTICE
        revived = route.submit(route.revive)

        def settled(state: RouteState) -> bool:
            return state.next_offset() > through or state.generation != generation

        while not offsets.wait_for(settled, _LOOK) and time.monotonic() < deadline:
            if revived.done() and route.halted:
                break
        outcome, reason = self._outcome(route, offsets, through, generation)
        reason = self._engine.redact(reason)
        text = f"{through} {_STEPPED[outcome]}" + (f": {reason}" if reason else "")
        told = {"through": through, "settled": settled(offsets.state)}
        return route_actions.answer(offsets, text, outcome=outcome, reason=reason, **told)

    def _outcome(
        self, route: Route, offsets: OffsetLog, through: int, generation: int
    ) -> tuple[str | None, str]:
        """Return the outcome of a stepped entry and the reason; ``None`` while it is pending."""
        if offsets.state.generation != generation:
            return "failed", "a replay began before it was delivered; step again"
        if offsets.state.next_offset() <= through:
            problem = route.status().problem
            return ("failed" if problem else None), problem
        with suppress(EngineUnreachable):
            found = _within(route.submit(partial(route.outcome_of, through)), NOTICE)
            if found is not None:
                return found.outcome or "skipped", found.reason if found.outcome else _ELSEWHERE
        return None, ""

    def _skip(
        self, route: Route, offsets: OffsetLog, request: requests.SkipParked, by: Operator
    ) -> dict[str, Any]:
        def skip() -> dict[str, Any]:
            done = route_actions.skip_parked(offsets, route.parking.store, request, by)
            route.revive()
            return done

        done = _within(route.submit(skip), SLICE)
        if done is None:
            raise EngineUnreachable(
                f"route {request.route} has been delivering one slice for {SLICE:.0f} s; "
                "nothing was changed"
            )
        return done

    def _operate_reader(self, request: ReaderRequest, by: Operator) -> dict[str, Any]:
        engine, name = self._engine, request.reader
        if (feed := engine.feed(name)) is None:
            known = ", ".join(each.name for each in engine.pipeline.readers)
            raise UnknownName(f"there is no reader {name!r} in the running pipeline ({known})")
        with self._operating_readers:
            self._refuse_ended(feed, request)
            if isinstance(request, requests.RestartReader):
                done = self._restarted(feed, request, by)
            else:
                done = route_actions.set_paused(engine.paused_readers, engine.audit, request, by)
                (feed.pause if done["paused"] else feed.resume)()
        deadline = time.monotonic() + NOTICE
        while not (in_effect := feed.settled) and time.monotonic() < deadline:
            time.sleep(_LOOK)
        status = feed.status()
        told = {"state": status.state.value, "problem": engine.redact(status.problem)}
        return done | told | {"in_effect": in_effect}

    def _refuse_ended(self, feed: Feed, request: ReaderRequest) -> None:
        """Raise unless *request* can be done to a reader that has stopped, or ended."""
        status = feed.status()
        if status.state is State.ENDED:
            raise ActionRefused(f"reader {feed.name} has ended: its source gives nothing more")
        if feed.halted and not isinstance(request, requests.RestartReader):
            raise ActionRefused(
                f"reader {feed.name} has stopped: {self._engine.redact(status.problem)}; fix "
                "that, then open it again with 'transporter reader restart'"
            )

    def _restarted(
        self, feed: Feed, request: requests.RestartReader, by: Operator
    ) -> dict[str, Any]:
        if feed.name in self._engine.paused_readers.names:
            raise ActionRefused(f"reader {feed.name} is paused; resume it, which opens it again")
        with self._engine.audit.change(
            "reader restart", by, reader=feed.name, reason=request.reason
        ):
            if not feed.restart():
                raise ActionRefused(f"reader {feed.name} is just stopping; restart it again")
        return {"reader": feed.name, "done": "restarted", "paused": False}

    def _forget(self, request: requests.Forget, by: Operator) -> dict[str, Any]:
        if self._engine.route(request.route) is not None:
            raise ActionRefused(
                f"route {request.route} is running; remove it from the pipeline file, 'transporter "
                "reload', and forget it then"
            )
        state = read_state(self._engine.log.directory, request.route)
        details = {"watermark": state.watermark, "reason": request.reason}
        with self._engine.audit.change("route forget", by, route=request.route, **details):
            self._engine.forget(request.route)
        return {"route": request.route, "done": "forgotten; it holds nothing back any more"}

    def _reload(self, request: requests.Reload, by: Operator) -> dict[str, Any]:
        with self._reloading:
            running = self._engine.pipeline
            declared = declared_routes(self._engine.log.directory)
            wanted = reread(running, self._environ, declared)
            changed = describe_changes(running, wanted)
            details = {"file": str(running.file), "reason": request.reason} | changed
            with self._engine.audit.change("reload", by, **details):
                taken_up = self._engine.reconfigure(wanted)
        deadline = time.monotonic() + NOTICE
        pending = [
            name
            for name, future in taken_up
            if not _done_by(future, max(0.0, deadline - time.monotonic()))
        ]
        while (leaving := self._engine.release_ended()) and time.monotonic() < deadline:
            time.sleep(_LOOK)
        opened = [*changed["readers"], *changed["added"]["readers"]]
        return {
            "file": str(running.file),
            "done": "reloaded",
            "pending": pending,
            "leaving": leaving,
            "problems": self._problems(opened, deadline),
            **{part: changed[part] for part in ("routes", "readers", "added", "removed")},
        }

    def _problems(self, readers: Sequence[str], deadline: float) -> dict[str, str]:
        """Wait for *readers* that are being opened; return the problems by reader.

        Those that are paused, or not open by the *deadline*, have no problem yet.
        """
        feeds = [feed for name in readers if (feed := self._engine.feed(name)) is not None]
        while not all(feed.settled for feed in feeds) and time.monotonic() < deadline:
            time.sleep(_LOOK)
        found = {feed.name: self._problem(feed) for feed in feeds}
        return {name: self._engine.redact(text) for name, text in found.items() if text}

    def _problem(self, feed: Feed) -> str:
        status = feed.status()
        if feed.has_new_config and status.state is not State.PAUSED:
            return status.problem or "it has not taken up its settings yet"
        return status.problem

    def _running(self, name: str) -> tuple[Route, OffsetLog]:
        found = self._engine.route(name)
        if found is None:
            known = ", ".join(each.name for each in self._engine.pipeline.routes)
            raise UnknownName(f"there is no route {name!r} in the running pipeline ({known})")
        return found

    def _tell(self, request: Any, by: Operator) -> None:  # noqa: ANN401 - any request
        if getattr(request, "dry_run", False):
            return
        name = next(name for name, kind in requests.KINDS.items() if type(request) is kind)
        self._observe(
            "operator-acted",
            route=getattr(request, "route", ""),
            reader=getattr(request, "reader", ""),
            action=name,
            who=by.who,
            reason=getattr(request, "reason", ""),
        )


def running_status(engine: Engine) -> dict[str, Any]:
    """Return the current status of *engine* as plain values."""
    status = engine.status()
    return {
        "running": True,
        "pid": os.getpid(),
        "pipeline": engine.pipeline.name,
        "stopping": engine.stopping,
        "directory": status.directory,
        "last": status.last,
        "size": status.size,
        "spark": status.spark,
        "readers": [_reader_status(each) for each in status.readers],
        "routes": list(_route_statuses(engine, status.routes)),
    }


def _reader_status(status: ReaderStatus) -> dict[str, Any]:
    fields = asdict(status) | {"state": status.state.value}
    del fields["latency"]  # for metrics, which have it as a histogram
    return fields


def _route_statuses(engine: Engine, routes: Iterable[RouteStatus]) -> Iterator[dict[str, Any]]:
    """Yield the status of each route. A route that a reload has removed may be gone."""
    for each in routes:
        if (offsets := engine.offsets(each.name)) is not None:
            yield _route_status(each, offsets.state)


def _route_status(status: RouteStatus, state: RouteState) -> dict[str, Any]:
    fields = {name: getattr(status, name) for name in _SHOWN} | {"state": status.state.value}
    fields["waiting"] = asdict(status.patience) if status.patience else None
    return fields | progress(state)


_SHOWN: Final = (
    *("name", "adaptor", "delivered", "skipped", "lag", "parked", "limited", "problem", "leaving"),
)


def _paused(offsets: OffsetLog) -> RouteState:
    """Return the state of a paused route; raise :class:`ActionRefused` for others."""
    state = offsets.state
    if not state.paused:
        raise ActionRefused(f"route {offsets.route} is not paused; pause it, then step")
    return state


def _upserts(route: Route) -> bool:
    """Return whether the route's sink keeps the newest value of a key, as its writer declares."""
    return bool(route.config.writer.config.upserts)


def _within(answer: Future[T], seconds: float) -> T | None:
    """Return the result of *answer* within *seconds*, or ``None`` if it was withdrawn."""
    with suppress(TooLong):
        return _result(answer, seconds)
    # A call that has begun cannot be withdrawn.
    return None if answer.cancel() else _result(answer, None)


def _result(answer: Future[T], seconds: float | None) -> T:
    try:
        return answer.result(seconds)
    except CancelledError as error:
        raise EngineUnreachable("the engine is stopping; nothing was changed") from error


def _done_by(answer: Future[None], seconds: float) -> bool:
    with suppress(TooLong, CancelledError):
        answer.result(seconds)
        return True
    return False
