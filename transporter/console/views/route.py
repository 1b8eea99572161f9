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


class Command(NamedTuple):
    """A command to copy, and what it does."""

    text: str
    effect: str


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


def commands_for(target: str, route: str) -> tuple[Command, ...]:
    """Return the commands that act on *route* of the log that *target* names."""
    return (
        Command(f"transporter route pause {target} {route}", "deliver nothing more"),
        Command(f"transporter route resume {target} {route}", "go on, or try again now"),
        Command(f"transporter route step {target} {route}", "deliver one entry, and stay paused"),
        Command(f"transporter parked list {target} {route}", "list the parked entries"),
        Command(
            f"transporter replay {target} {route} --from 1h --dry-run",
            "count the entries that a replay would deliver again",
        ),
    )
