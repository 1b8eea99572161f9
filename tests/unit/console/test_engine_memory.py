"""Events and history of an engine, fetched once for all viewers."""

from __future__ import annotations

from typing import Any

from transporter.console.engine_memory import EVENTS_FRESH, HISTORY_FRESH, EngineMemory
from transporter.control.requests import Events, ReadRequest


class Asked:
    """An engine that has events, and counts requests."""

    def __init__(self) -> None:
        self.run, self.events, self.requests, self.now = "one", 3, [], 0.0

    def __call__(self, request: ReadRequest) -> dict[str, Any] | None:
        self.requests.append(request)
        if not isinstance(request, Events):
            return {"series": [], "times": [], "left_out": []}
        numbers = range(request.after + 1, min(self.events, request.after + 2) + 1)
        levels = ("info", "warning", "error")
        found = [
            {"number": each, "level": levels[each % 3], "route": f"r{each}"} for each in numbers
        ]
        reached = max(numbers, default=self.events)
        page = {"newest": self.events, "next": reached, "dropped": 0}
        return {"run": self.run, "events": found, **page}


def numbers(memory: EngineMemory, *arguments: str) -> list[int]:
    """Return the numbers of the events that *memory* has."""
    return [each["number"] for each in memory.events(*arguments)]


def test_only_new_events_are_fetched() -> None:
    """Each once, in as many answers as they take; a look within half a second costs nothing."""
    engine = Asked()
    memory = EngineMemory(engine, lambda: engine.now)
    assert numbers(memory) == [1, 2, 3]
    assert numbers(memory, "warning") == [1, 2]
    assert numbers(memory, "info", "r2") == [2]
    assert [each.after for each in engine.requests] == [0, 2]
    engine.now, engine.events = EVENTS_FRESH, 4
    assert numbers(memory) == [1, 2, 3, 4]
    assert engine.requests[-1].after == 3


def test_another_run_begins_anew() -> None:
    """Its numbers are its own, and those of the run before are gone."""
    engine = Asked()
    memory = EngineMemory(engine, lambda: engine.now)
    assert numbers(memory) == [1, 2, 3]
    engine.now, engine.run, engine.events = EVENTS_FRESH, "two", 2
    assert numbers(memory) == [1, 2]


def test_history_is_fetched_with_each_point() -> None:
    """Not more often than the engine takes points."""
    engine = Asked()
    memory = EngineMemory(engine, lambda: engine.now)
    assert memory.history() is memory.history()
    assert len(engine.requests) == 1
    engine.now = HISTORY_FRESH
    memory.history()
    assert len(engine.requests) == 2
