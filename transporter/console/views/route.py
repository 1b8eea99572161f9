"""The page of one route. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from transporter.console.formats import count_text
from transporter.console.views.overview import PartCard, route_card

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transporter.console.sources import Look


class Progress(NamedTuple):
    """The progress of a replay, in entries' offsets and in percent."""

    first: str
    last: str
    next: str
    percent: int
    namespace: str


@dataclass(frozen=True, slots=True)
class RouteView:
    """One route at one look."""

    card: PartCard
    next_offset: int
    next_is_logged: bool
    behind: str
    replay: Progress | None
    generation: int
    paused: bool


def route_view(route: Mapping[str, Any], look: Look) -> RouteView:
    """Return the view of *route*, a route of the status in *look*."""
    last = look.status["last"] if look.status is not None else -1
    lag = route["lag"]
    return RouteView(
        card=route_card(route, look.rates),
        next_offset=route["next"],
        next_is_logged=route["next"] <= last,
        behind="entries" if lag else "all entries are settled",
        replay=_progress(route["replay"]),
        generation=route["generation"],
        paused=bool(route["paused"]),
    )


def _progress(replay: Mapping[str, Any] | None) -> Progress | None:
    if replay is None:
        return None
    whole = replay["last"] - replay["first"] + 1
    done = replay["next"] - replay["first"]
    return Progress(
        count_text(replay["first"]),
        count_text(replay["last"]),
        count_text(replay["next"]),
        round(100 * done / whole) if whole > 0 else 100,
        replay.get("namespace") or "",
    )
