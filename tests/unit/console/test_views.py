"""The console's views: overview, route, parked entries, changes, files."""

from __future__ import annotations

from typing import Any

import pytest

from transporter.console.rates import SAMPLES, RateMeter, Series
from transporter.console.sources import Look
from transporter.console.views.audit import change_rows, matching_changes
from transporter.console.views.events import event_without_texts
from transporter.console.views.overview import (
    FEW,
    HEIGHT,
    LOOK_MARKS,
    WIDTH,
    mark_of,
    overview,
    sparkline,
)
from transporter.console.views.parked import group_parked, normalized_error, parked_row
from transporter.console.views.privacy import HIDDEN, error_without_text, look_without_texts
from transporter.console.views.route import route_view
from transporter.engine.events import State
from transporter.errors import ActionRefused, OffsetRefused, SinkError, TransporterError


def route(name: str = "out", **fields: Any) -> dict[str, Any]:
    """Return the status of a running route."""
    plain = {
        "name": name,
        "adaptor": "file",
        "state": "running",
        "delivered": 5,
        "lag": 0,
        "watermark": 9,
        "next": 10,
        "parked": 0,
        "problem": "",
        "waiting": None,
        "limited": 0.0,
        "replay": None,
        "retries": 0,
        "step": None,
        "paused": False,
        "generation": 0,
    }
    return plain | fields


def look(*routes: dict[str, Any], state: Any = "live", problem: str = "", **fields: Any) -> Look:
    """Return a look at a log with these routes."""
    reader = {"name": "in", "adaptor": "file", "state": "running", "logged": 10, "problem": ""}
    status = {
        "running": True,
        "pid": 7,
        "spark": True,
        "stopping": False,
        "last": 9,
        "size": 2048,
        "readers": [reader],
        "routes": list(routes),
    }
    return Look(state, status | fields, 1_000.0, problem)


def view(found: Look) -> Any:
    """Return the overview of *found*."""
    return overview("orders", "/data/orders", found, "orders.yaml")


def test_a_healthy_log_has_no_problems() -> None:
    """Its title is its name, and its icon is green."""
    found = view(look(route()))
    assert (found.title, found.tone, found.problems) == ("orders", "good", ())
    assert found.headline == "engine 7 runs"


@pytest.mark.parametrize(
    ("fields", "tone", "text"),
    [
        ({"state": "stopped", "problem": "no rights"}, "bad", "no rights"),
        (
            {"state": "retrying", "problem": "down", "waiting": {"since": 125.0, "left": 18.0}},
            "warn",
            "failing for 2 min, next try in 18 s: down",
        ),
        ({"state": "no space"}, "warn", "no space"),
        ({"state": "running", "problem": "late"}, "warn", "late"),
    ],
)
def test_a_route_in_trouble_is_a_problem(fields: dict[str, Any], tone: str, text: str) -> None:
    """It is named with its reason, and the title counts it."""
    found = view(look(route(**fields), route("fine")))
    assert [(each.route, each.text, each.mark.tone) for each in found.problems] == [
        ("out", text, tone)
    ]
    assert found.title == "1 problem · orders"
    assert found.tone == tone


def test_a_paused_route_is_not_a_problem() -> None:
    """An operator wanted it so."""
    assert view(look(route(state="paused", paused=True))).problems == ()


def test_many_routes_have_those_in_trouble_first() -> None:
    """The order of the file is kept for few of them only."""
    names = [f"r{number:02}" for number in range(FEW + 1)]
    routes = [route(name, state="stopped" if name == "r07" else "running") for name in names]
    assert [each.name for each in view(look(*routes)).routes][:2] == ["r07", "r00"]
    assert [each.name for each in view(look(*routes[:FEW])).routes] == names[:FEW]


@pytest.mark.parametrize(
    ("state", "text", "hint"),
    [
        ("live", "", ""),
        ("silent", "it hangs. This is the last picture; asking again.", ""),
        ("stopped", "This is what the disk holds.", "transporter run orders.yaml"),
        ("absent", "There is no log in this directory yet.", "transporter run orders.yaml"),
        ("damaged", "No engine can start on this log", "transporter log verify orders.yaml"),
    ],
)
def test_each_state_of_a_log_is_written_out(state: Any, text: str, hint: str) -> None:
    """The page says what it shows, and which command comes next."""
    found = view(look(route(), state=state, problem="it hangs"))
    assert found.explanation.startswith(text)
    assert found.hint == hint
    assert found.mark == LOOK_MARKS[state]


def test_without_a_status_no_number_is_shown() -> None:
    """No zeros that look like measurements."""
    found = view(Look("absent", None, 1_000.0))
    assert (found.size, found.last, found.routes) == ("", "", ())


def test_every_state_of_the_engine_has_a_mark_of_its_own() -> None:
    """No two states share word, and none is told by its colour alone."""
    marks = [mark_of(state.value) for state in State]
    assert len({each.word for each in marks}) == len(State)
    assert len({(each.shape, each.tone) for each in marks}) >= len(State) - 1
    assert mark_of("of the future").word == "of the future"


def test_texts_of_errors_are_hidden_from_viewers() -> None:
    """An error may quote a payload; that there is one is no secret."""
    found = look_without_texts(look(route(state="stopped", problem="ACME")))
    assert [each.text for each in view(found).problems] == [HIDDEN]


def test_events_keep_what_the_engine_itself_says() -> None:
    """Texts that may quote a message are hidden. Who did what, and numbers, are not."""
    event = {
        "event": "operator-acted",
        "level": "info",
        "timestamp": "t",
        "number": 7,
        "action": "pause",
        "who": "ann",
        "via": "",
        "from": "",
        "uid": 0,
        "pid": 9,
        "reason": "ACME",
        "problem": "",
        "retries": ["ACME"],
    }
    assert event_without_texts(event) == event | {"reason": HIDDEN, "retries": HIDDEN}


@pytest.mark.parametrize(
    ("error", "is_shown"),
    [
        (OffsetRefused("nothing is parked at 4"), True),
        (ActionRefused("reader in has stopped: ACME"), False),
        (SinkError("ACME"), False),
        (TransporterError("ACME"), False),
    ],
)
def test_errors_that_may_quote_a_message_are_hidden(
    error: TransporterError, *, is_shown: bool
) -> None:
    """One about the request itself is shown as it is, and each other one is a refusal."""
    found = error_without_text(error)
    assert (str(found) == str(error)) is is_shown
    assert is_shown or isinstance(found, ActionRefused)


def test_a_route_shows_the_progress_of_its_replay() -> None:
    """In percent of the range, with the next offset."""
    replay = {"first": 100, "last": 299, "next": 150, "namespace": ""}
    status = route(replay=replay, lag=12)
    found = route_view(status, look(status))
    assert found.replay is not None
    assert (found.replay.percent, found.replay.next) == (25, "150")
    assert not found.next_is_logged


def parked(offset: int, error: str, key: str | None = "k", behind: int | None = None) -> Any:
    """Return the plain values of a parked entry."""
    return {
        "offset": offset,
        "error": error,
        "attempts": 5,
        "behind": behind,
        "parked_at": "2026-11-28T08:00:00.000+00:00",
        "retry_requested": False,
        "entry": {"key": key},
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no 3 here", "no 44 here"),
        ("customer 'ACME' has no city", "customer 'Zed, Inc.' has no city"),
        ('row "a1" at 10.5', 'row "b" at 7'),
    ],
)
def test_like_errors_are_alike(one: str, other: str) -> None:
    """Numbers and quoted values do not tell errors apart."""
    assert normalized_error(one) == normalized_error(other)


def test_parked_entries_are_grouped_by_error_the_largest_first() -> None:
    """Those that wait behind another one of their key belong to its group."""
    values = [
        parked(1, "no city"),
        parked(2, "refused 7"),
        parked(3, "refused 8", None),
        parked(5, "", "k", behind=1),
        parked(6, "refused 9", "j"),
        parked(9, "x", behind=4),
    ]
    found = group_parked(list(map(parked_row, values)))
    groups = [(each.error, [row.offset for row in each.rows], each.keys) for each in found]
    assert groups == [
        ("refused #", [2, 3, 6], "k, null, j"),
        ("no city", [1, 5], "k"),
        ("x", [9], "k"),
    ]


def test_changes_are_newest_first_with_their_outcome() -> None:
    """A change whose outcome nobody wrote is unknown, and a failed one is marked."""
    by = {"who": "ann", "known_by": "uid", "uid": 7, "pid": 9}
    rows = change_rows(
        [
            {"at": 1.0, "action": "ack", "route": "out", "first": 3, "outcome": "done", **by},
            {"at": 2.0, "action": "reload", "outcome": "failed: ConfigError", **by},
            {"at": float("nan"), "action": "route pause", "outcome": None, **by},
        ]
    )
    assert [(each.action, each.outcome, each.tone) for each in rows] == [
        ("route pause", "unknown", "warn"),
        ("reload", "failed: ConfigError", "bad"),
        ("ack", "done", "idle"),
    ]
    assert (rows[2].what, rows[2].at, rows[0].at) == ("first=3", "1970-01-01T00:00:01.000Z", "")


def test_changes_are_filtered_by_author_action_and_route() -> None:
    """Parts of names are enough, in any case, but a route is named in full."""
    changes = [{"who": "Ann", "action": "ack", "route": "a"}, {"who": "bob", "action": "reload"}]
    assert matching_changes(changes, who="an") == changes[:1]
    assert matching_changes(changes, action="LOAD") == changes[1:]
    assert matching_changes(changes, route="a") == changes[:1]
    assert matching_changes(changes, route="") == changes


def counts(pid: int, logged: int, delivered: int) -> dict[str, Any]:
    """Return the counts of an engine."""
    return {
        "pid": pid,
        "readers": [{"name": "in", "logged": logged}],
        "routes": [{"name": "out", "delivered": delivered}],
    }


def test_rates_are_between_looks_and_begin_anew_with_an_engine() -> None:
    """Two looks give a rate; those of another engine do not count."""
    meter = RateMeter()
    meter.add(0.0, counts(1, 0, 0))
    assert meter.rates() == {}
    meter.add(0.5, counts(1, 99, 99))  # too soon to count
    meter.add(2.0, counts(1, 100, 10))
    meter.add(4.0, counts(1, 100, 30))
    assert meter.rates() == {
        ("reader", "in"): Series(0.0, ((2.0, 50.0), (0.0, 0.0))),
        ("route", "out"): Series(10.0, ((2.0, 5.0), (0.0, 10.0))),
    }
    meter.add(6.0, counts(2, 1, 1))
    assert meter.rates() == {}


def test_rates_are_bounded() -> None:
    """Two minutes are kept, however long somebody looks (Invariant 17)."""
    meter = RateMeter()
    for second in range(3 * SAMPLES):
        meter.add(float(second), counts(1, second, 0))
    assert len(meter.rates()["reader", "in"].points) == SAMPLES


def test_a_sparkline_stays_in_its_box_and_is_described() -> None:
    """Its points lie inside, and its text names the least, the most and the present rate."""
    points = tuple((float(ago), float(ago % 7)) for ago in range(119, -1, -1))
    found = sparkline(Series(0.0, points))
    assert found is not None
    places = [tuple(map(float, each.split(","))) for each in found.points.split()]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)
    assert found.label == "last 119 s: 0/s to 6.0/s, now 0/s"
    assert sparkline(None) is sparkline(Series(1.0, ((0.0, 1.0),))) is None
