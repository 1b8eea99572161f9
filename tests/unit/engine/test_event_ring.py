"""The engine's newest events: their numbers, their bounds, and their filters."""

from __future__ import annotations

import json

import pytest
from engine_tools import Events

from transporter.engine.event_ring import LONGEST, MOST, EventRing


def numbers(ring: EventRing, after: int = 0, level: str = "info", route: str = "") -> list[int]:
    """Return the numbers of the events that a reader gets."""
    return [each["number"] for each in ring.read(after, level, route, MOST)["events"]]


def test_events_are_passed_on_and_kept_as_they_are_on_stderr() -> None:
    """A kept event has the name, the level and the fields of its line, and a time and a number."""
    events = Events()
    ring = EventRing(events)
    ring("route-retrying", route="out", problem="down", retry_in=0.5)
    assert events.all == [("route-retrying", {"route": "out", "problem": "down", "retry_in": 0.5})]
    (kept,) = ring.read(0, "info", "", MOST)["events"]
    assert kept.pop("timestamp").endswith("Z")
    assert kept == {
        "number": 1,
        "event": "route-retrying",
        "level": "warning",
        "route": "out",
        "problem": "down",
        "retry_in": 0.5,
    }


def test_a_reader_sees_how_many_events_it_has_missed() -> None:
    """Numbers have no gap, and events that made room for others are counted."""
    ring = EventRing(Events(), size=10)
    for number in range(25):
        ring("reader-opened", reader=str(number))
    found = ring.read(3, "info", "", MOST)
    assert [each["number"] for each in found["events"]] == [*range(16, 26)]
    assert (found["oldest"], found["newest"], found["next"], found["dropped"]) == (16, 25, 25, 12)
    assert ring.read(20, "info", "", MOST)["dropped"] == 0
    assert numbers(ring, 25) == []
    assert numbers(ring, 1_000) == []


def test_a_long_answer_is_continued() -> None:
    """A reader that asks for less gets the oldest, and the number to continue after."""
    ring = EventRing(Events())
    for number in range(7):
        ring("reader-opened", reader=str(number))
    first = ring.read(0, "info", "", 3)
    assert [each["number"] for each in first["events"]] == [1, 2, 3]
    assert (first["next"], first["newest"]) == (3, 7)
    assert [each["number"] for each in ring.read(3, "info", "", 100)["events"]] == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("level", "route", "expected"),
    [
        ("info", "", [1, 2, 3, 4]),
        ("warning", "", [2, 3, 4]),
        ("error", "", [4]),
        ("info", "out", [2, 4]),
        ("warning", "other", [3]),
        ("info", "none", []),
    ],
)
def test_events_are_filtered_by_level_and_route(
    level: str, route: str, expected: list[int]
) -> None:
    """A level includes those above it, and a reader of a filtered view continues at the end."""
    ring = EventRing(Events())
    ring("reader-opened", reader="out")
    ring("route-retrying", route="out", problem="down")
    ring("route-retrying", route="other", problem="down")
    ring("route-stopped", route="out", problem="bad")
    assert numbers(ring, 0, level, route) == expected
    assert ring.read(0, level, route, MOST)["next"] == 4


def test_the_memory_of_kept_events_is_bounded() -> None:
    """Long texts and lists are cut, later changes of a list do not show, answers stay short."""
    ring, columns = EventRing(Events(), size=MOST), ["a"]
    for _ in range(MOST):
        ring("route-stopped", route="é" * 5000, offset=1, problem="\x00" * 90_000, watermark=1)
    ring("schema-changed", reader="in", table="t", added=columns, dropped=["x" * 5000], retyped=())
    columns.append("b")
    *_, last = ring.read(0, "info", "", MOST)["events"]
    assert last["added"] == ["a"]
    assert len(last["dropped"]) == LONGEST + 1
    assert len(json.dumps(ring.read(0, "info", "", MOST))) < 8 << 20
    errors = ring.read(0, "error", "", 9)["events"]
    assert {len(each["problem"]) for each in errors} == {LONGEST + 1}


def test_a_value_of_another_kind_is_kept_as_text() -> None:
    """An observer never raises, whatever a detail is."""
    ring = EventRing(Events())
    ring("callback-failed", about={(1, 2): {3}}, problem={"a", "b"}, path=object)
    (kept,) = ring.read(0, "info", "", 1)["events"]
    assert kept["about"] == "{(1, 2): {3}}"
    assert kept["path"] == str(object)
    json.dumps(kept)


def test_measurements_displace_no_events() -> None:
    """A measurement in a regular rhythm is reported and not kept."""
    events = Events()
    ring = EventRing(events)
    ring("meter-read", reader="in", purged=1, rate=1.0, seconds=5)
    assert events.named("meter-read")
    assert numbers(ring) == []
