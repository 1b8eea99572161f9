"""Whether an engine gets on with its work, and if not, what holds it up. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from transporter.engine.events import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.engine.events import EngineStatus, ReaderStatus, RouteStatus

_STUCK: Final = "it settles nothing although there is something to do"
_SILENT: Final = "its poll does not return"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why an engine is not ready: who gets nowhere, in which state, since how many seconds."""

    kind: Literal["reader", "route"]
    name: str
    state: str
    problem: str
    seconds: float


def reasons(status: EngineStatus, patience: float) -> tuple[Reason, ...]:
    """Return why the engine is not ready; nothing when it is.

    Who is stopped, or has not started yet, counts at once; who tries again, waits
    for space or seems stuck counts after *patience* seconds. Who is paused was
    paused by somebody who knows: that is shown, and no reason.
    """
    return (
        *(found for each in status.readers for found in _reader(each, patience)),
        *(found for each in status.routes for found in _route(each, patience)),
    )


def paused(status: EngineStatus) -> list[str]:
    """Name the routes that an operator has paused."""
    return [each.name for each in status.routes if each.state is State.PAUSED]


def report(status: EngineStatus, patience: float) -> dict[str, Any]:
    """Return what ``/readyz`` says, as plain values."""
    found = reasons(status, patience)
    return {
        "ready": not found,
        "spark": status.spark,
        "reasons": [
            {
                "kind": each.kind,
                "name": each.name,
                "state": each.state,
                "problem": each.problem,
                "seconds": round(each.seconds, 1),
            }
            for each in found
        ],
        "paused": paused(status),
    }


def _reader(reader: ReaderStatus, patience: float) -> Iterator[Reason]:
    state, problem = reader.state, reader.problem
    if state in (State.ENDED, State.PAUSED):
        return
    at_once = state in (State.STOPPED, State.STARTING)
    if at_once or reader.still > patience:
        yield Reason("reader", reader.name, state.value, problem or _SILENT, reader.still)


def _route(route: RouteStatus, patience: float) -> Iterator[Reason]:
    state, problem = route.state, route.problem
    if state in (State.ENDED, State.PAUSED):
        return
    at_once = state in (State.STOPPED, State.STARTING)
    busy = route.lag > 0 or route.replaying or state is State.RETRYING
    if at_once or (busy and route.still > patience):
        default = "its worker has not opened its writer yet" if state is State.STARTING else _STUCK
        yield Reason("route", route.name, state.value, problem or default, route.still)
