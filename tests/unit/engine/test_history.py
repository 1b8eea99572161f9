"""Half an hour of counts: their order, their bounds, and the members that come and go."""

from __future__ import annotations

import json
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import PATIENCE, Events, make_pipeline, running, until

from transporter.engine.events import EngineStatus, ReaderStatus, RouteStatus, State
from transporter.engine.history import INTERVAL, MOST_SERIES, POINTS, History
from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from pathlib import Path


def route(name: str = "out", delivered: int = 0, lag: int = 0, parked: int = 0) -> RouteStatus:
    """Return the status of a route."""
    return RouteStatus(name, "file", State.RUNNING, delivered, 0, 0, lag, parked)


def reader(name: str = "in", logged: int = 0, **measured: float) -> ReaderStatus:
    """Return the status of a reader."""
    return ReaderStatus(name, "file", State.RUNNING, logged, measured=measured)  # type: ignore[arg-type]


def status(*members: ReaderStatus | RouteStatus) -> EngineStatus:
    """Return the status of an engine."""
    readers = tuple(each for each in members if isinstance(each, ReaderStatus))
    routes = tuple(each for each in members if isinstance(each, RouteStatus))
    return EngineStatus("log", 0, 0, spark=True, readers=readers, routes=routes)


def recorded(*statuses: EngineStatus) -> History:
    """Return a history of *statuses*, a second apart."""
    history = History(status, lambda _: None)
    for number, each in enumerate(statuses):
        history.record(each, 1_000.0 + number)
    return history


def series_of(history: History, name: str = "out") -> dict[str, Any]:
    """Return the series of a member."""
    return next(each for each in history.to_json()["series"] if each["name"] == name)


def test_each_count_is_a_series_in_order() -> None:
    """A route has three counts, a reader two, and all have the points of the same times."""
    history = recorded(
        status(reader(logged=1), route(delivered=3, lag=7, parked=1)),
        status(reader(logged=2, backlog_messages=5.4), route(delivered=4, lag=6)),
    )
    found = history.to_json()
    assert (found["interval"], found["times"], found["left_out"]) == (5.0, [1000.0, 1001.0], [])
    assert found["series"] == [
        {"kind": "reader", "name": "in", "logged": [1, 2], "lag": [None, 5]},
        {"kind": "route", "name": "out", "delivered": [3, 4], "lag": [7, 6], "parked": [1, 0]},
    ]
    assert history.to_json("out")["series"] == found["series"][1:]
    assert history.to_json("none")["series"] == []


def test_the_oldest_points_make_room() -> None:
    """Half an hour is kept, the oldest point first."""
    history = recorded(*(status(route(delivered=each)) for each in range(POINTS + 100)))
    assert series_of(history)["delivered"] == [*range(100, POINTS + 100)]
    assert len(history.to_json()["times"]) == POINTS
    assert history.to_json()["times"][0] == 1_100.0
    assert POINTS * INTERVAL == 30 * 60


def test_a_member_that_left_keeps_its_points_for_half_an_hour() -> None:
    """A removed route has no points from then on, and disappears with its last one."""
    history = recorded(status(route(delivered=7)), *[status()] * (POINTS - 1))
    assert series_of(history)["delivered"] == [7, *[None] * (POINTS - 1)]
    history.record(status(), 0.0)
    assert history.to_json()["series"] == []


def test_members_beyond_the_limit_are_named() -> None:
    """The number of series is bounded, whoever has no room is named, and gets it once there is."""
    many = [route(f"r{number:02}") for number in range(25)]
    history = recorded(status(*many))
    found = history.to_json()
    assert sum(len(each) - 2 for each in found["series"]) <= MOST_SERIES
    assert found["left_out"] == ["route r21", "route r22", "route r23", "route r24"]
    history.record(status(*many[5:]), 2_000.0)
    assert history.to_json()["left_out"] == []
    assert series_of(history, "r24")["delivered"] == [None, 0]


def test_memory_and_answer_are_bounded() -> None:
    """All series together take less than 1 MiB, and the answer less than one of the socket."""
    names = [f"{number}-" + "n" * 100 for number in range(100)]
    huge = status(*(route(name, 1 << 61, 1 << 61, 1 << 61) for name in names))
    history = recorded(*[huge] * POINTS)
    size = sum(sys.getsizeof(series) for series in history._all_series())
    assert size < 1 << 20
    assert len(json.dumps(history.to_json())) < 4 << 20


@pytest.mark.parametrize("backlog", [float("nan"), float("inf"), float("-inf"), -5.0, 1e300])
def test_a_measure_that_is_no_count_does_no_harm(backlog: float) -> None:
    """A reader's adaptor may measure nonsense, and the history continues."""
    history = recorded(status(reader(backlog_messages=backlog)))
    (value,) = series_of(history, "in")["lag"]
    assert value is None or value == 1 << 62


def test_an_engine_records_from_its_start_to_its_end(tmp_path: Path) -> None:
    """A running engine's counts are recorded, and the thread does not outlive it."""
    pipeline = make_pipeline(tmp_path, ["a 1", "a 2"], end=False, out={})
    with running(pipeline, events=Events()) as engine:
        until(lambda: engine.status().routes[0].delivered == 2)
        engine.history.record(engine.status(), 2.0)
        assert series_of(engine.history)["delivered"][-1] == 2
        assert engine.history.thread.is_alive()
    assert not engine.history.thread.is_alive()


def test_a_history_takes_points_in_its_rhythm_and_reports_its_failure() -> None:
    """The thread records until it fails, and its failure is not silent."""
    failures: list[BaseException] = []
    failed = threading.Event()
    counts = iter(range(3))

    def read() -> EngineStatus:
        try:
            return status(route(delivered=next(counts)))
        except StopIteration:
            raise EnvironmentFault("gone") from None

    def fail(error: BaseException) -> None:
        failures.append(error)
        failed.set()

    history = History(read, fail, interval=0.001)
    history.start()
    assert failed.wait(PATIENCE)
    history.stop()
    assert [str(each) for each in failures] == ["gone"]
    assert series_of(history)["delivered"] == [0, 1, 2]
