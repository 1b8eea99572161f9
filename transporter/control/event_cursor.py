"""A cursor over the events of a running engine, which goes on when another engine answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from transporter.control.requests import Events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class EventPage(NamedTuple):
    """One answer: some events, the oldest first.

    ``dropped`` is the number of events that the engine has dropped since the page before.
    ``is_restart`` is set on the first page of another run, whose numbers begin again.
    """

    run: str
    events: list[dict[str, Any]]
    dropped: int
    newest: int
    next: int
    is_restart: bool


class EventCursor:
    """Reads each event of whichever engine answers once. Not thread-safe."""

    def __init__(self, wanted: Events | None = None) -> None:
        """Begin with the oldest events that match *wanted* and are kept; by default all match."""
        self._wanted = wanted or Events()
        self._run: str | None = None
        self._next = 0

    def read(self, ask: Callable[[Events], Mapping[str, Any] | None]) -> Iterator[EventPage]:
        """Yield the events since the last call by pages, until the newest, or *ask* gives ``None``.

        There is a page also where nothing is new.
        """
        is_restart = False
        while (answer := ask(replace(self._wanted, after=self._next))) is not None:
            if self._run is not None and answer["run"] != self._run:
                self._run, self._next, is_restart = answer["run"], 0, True
                continue
            self._run, self._next = answer["run"], answer["next"]
            yield EventPage(
                answer["run"],
                answer["events"],
                answer["dropped"],
                answer["newest"],
                answer["next"],
                is_restart,
            )
            is_restart = False
            if self._next >= answer["newest"]:
                return
