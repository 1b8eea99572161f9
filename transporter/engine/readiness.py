"""Readiness of an engine: whether it makes progress, and the reasons if not. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from transporter.engine.events import State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from transporter.engine.events import EngineStatus, ReaderStatus, RouteStatus

_READERS: Final = {
    State.STARTING: "its source is not open yet",
    State.RETRYING: "its source fails and is retried",
    State.WAITING: "the log has no space",
    State.STOPPED: "it waits for an operator",
}
_ROUTES: Final = {
    State.STARTING: "its worker has not opened its writer yet",
    State.RETRYING: "its sink fails and is retried",
    State.STOPPED: "it waits for an operator",
}
_SILENT: Final = "its poll does not return"
_STUCK: Final = "it settles nothing although entries are pending"


@dataclass(frozen=True, slots=True)
class NotReadyReason:
    """A reason why an engine is not ready: the part, its state, and for how many seconds.

    The engine itself as the part has no name.

    Fixed texts and counts only, because an error may quote a message (Invariant 20).
    """

    kind: Literal["engine", "reader", "route"]
    name: str
    state: str
    why: str
    seconds: float
    counts: Mapping[str, int]


def not_ready_reasons(status: EngineStatus, patience: float) -> tuple[NotReadyReason, ...]:
    """Return the reasons why the engine is not ready; empty if it is ready.

    One that drains before its end is not. A part that is stopped or starting counts at once. One
    that retries, waits for space or makes no progress counts after *patience* seconds. A paused
    or a removed one does not count.
    """
    ends = () if status.ending is None else (_ends(status.ending),)
    return (
        *ends,
        *(found for each in status.readers for found in _reader_reasons(each, patience)),
        *(found for each in status.routes for found in _route_reasons(each, patience)),
    )


def is_starting(status: EngineStatus) -> bool:
    """Return whether a reader or a route has not begun yet. One that fails or waits has begun."""
    parts: tuple[ReaderStatus | RouteStatus, ...] = (*status.readers, *status.routes)
    return any(each.state is State.STARTING and not each.leaving for each in parts)


def paused_names(status: EngineStatus) -> list[str]:
    """Name the readers and routes that an operator has paused."""
    readers = [each.name for each in status.readers if each.state is State.PAUSED]
    return readers + [each.name for each in status.routes if each.state is State.PAUSED]


def readiness_report(status: EngineStatus, patience: float) -> dict[str, Any]:
    """Return the body of ``/readyz``, and the answer to ``transporter ready``, as plain values."""
    found = not_ready_reasons(status, patience)
    return {
        "ready": not found,
        "spark": status.spark,
        "reasons": [
            {
                "kind": each.kind,
                "name": each.name,
                "state": each.state,
                "why": each.why,
                "seconds": round(each.seconds, 1),
                **each.counts,
            }
            for each in found
        ],
        "paused": paused_names(status),
    }


def _ends(seconds: float) -> NotReadyReason:
    why = "it delivers what is logged, and ends"
    return NotReadyReason("engine", "", "stopping", why, seconds, {})


def _reader_reasons(reader: ReaderStatus, patience: float) -> Iterator[NotReadyReason]:
    state = reader.state
    if reader.leaving or state in (State.ENDED, State.PAUSED):
        return
    at_once = state in (State.STOPPED, State.STARTING)
    if at_once or reader.still > patience:
        why, counts = _READERS.get(state, _SILENT), {"logged": reader.logged}
        yield NotReadyReason("reader", reader.name, state.value, why, reader.still, counts)


def _route_reasons(route: RouteStatus, patience: float) -> Iterator[NotReadyReason]:
    state = route.state
    if route.leaving or state in (State.ENDED, State.PAUSED):
        return
    at_once = state in (State.STOPPED, State.STARTING)
    busy = route.lag > 0 or route.replaying or state is State.RETRYING
    if at_once or (busy and route.still > patience):
        why, counts = _ROUTES.get(state, _STUCK), {"lag": route.lag, "parked": route.parked}
        yield NotReadyReason("route", route.name, state.value, why, route.still, counts)
