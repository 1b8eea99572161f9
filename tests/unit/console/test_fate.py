"""The fate of one entry in one route, as far as it is recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from transporter.console.fate import SHAPES, RouteFacts, fate_of
from transporter.message import NOOP
from transporter.offsets.parked import ParkReason
from transporter.offsets.state import Range, Replay, RouteState


def facts(*, takes: bool | None = True, parked: Any = None, changes: Any = (), **state: Any) -> Any:
    """Return the facts about a route that has settled 0..9."""
    return RouteFacts(RouteState(**{"watermark": 9, **state}), takes, parked, changes)


def change(action: str, **fields: Any) -> dict[str, Any]:
    """Return a line of the audit file about the offsets 3..5."""
    return {"action": action, "who": "ann", "reason": "", "outcome": "done", **fields}


@pytest.mark.parametrize(
    ("found", "kind", "text"),
    [
        (facts(), "settled", "settled: at or below the watermark 9; its filter takes it"),
        (facts(takes=None), "settled", "its filter is not known here"),
        (facts(takes=False), "filtered", "its filter leaves it out"),
        (facts(watermark=3), "pending", "not settled yet: behind the watermark 3"),
        (facts(watermark=-1), "pending", "not settled yet: the route has settled nothing"),
        (facts(watermark=3, paused=True), "pending", "the route is paused"),
        (facts(watermark=3, takes=False), "filtered", "its filter leaves it out"),
        (facts(watermark=3, above=(Range(4, 6),)), "settled", "acknowledged by the sink"),
        (facts(watermark=3, above=(Range(4, 6, "operator"),)), "operator", "by an operator"),
        (facts(watermark=3, above=(Range(4, 6, "skipped"),)), "given up", "on_error: skip"),
        (facts(watermark=3, above=(Range(4, 6, "released"),)), "given up", "within its budget"),
        (facts(watermark=3, above=(Range(4, 6, "superseded"),)), "superseded", "source gives it"),
        (facts(watermark=3, above=(Range(4, 6, "parked"),)), "settled", "parked earlier"),
        (facts(released=(Range(4, 6, "released"),)), "given up", "within its budget"),
        (facts(replay=Replay(4, 8, 5)), "replaying", "a replay will deliver it again"),
        (facts(replay=Replay(4, 8, 6)), "settled", "settled"),
        (facts(replay=Replay(4, 8, 5, "^a")), "settled", "settled"),
        (facts(replay=Replay(4, 8, 5), takes=False), "filtered", "leaves it out"),
        (facts(parked=ParkReason("no", 5, 0)), "parked", "parked after 5 attempts"),
        (facts(parked=ParkReason("no", 1, 0)), "parked", "parked after 1 attempt"),
        (facts(parked=ParkReason("", 0, 0, 2)), "parked", "parked behind 2"),
        (facts(parked=ParkReason("no", 5, 0), retries=(5,)), "parked", "a retry is requested"),
    ],
)
def test_the_files_of_a_route_decide(found: RouteFacts, kind: str, text: str) -> None:
    """Each state of the offset log and of the parked copies has one fate, with its reason."""
    fate = fate_of(5, "insert", found)
    assert (fate.kind, text in fate.text) == (kind, True), fate
    assert fate.shape == SHAPES[fate.kind]


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ([change("ack", first=3, last=5)], "operator", "settled undelivered by an operator, ann"),
        ([change("ack", first=3, last=5, reason="test")], "operator", "ann: test"),
        ([change("ack", first=3, last=4)], "settled", "settled"),
        ([change("ack", first=3, last=5, outcome="failed: LogFull")], "settled", "settled"),
        ([change("ack", first=3, last=5, outcome=None)], "operator", "by an operator"),
        ([change("parked skip", offsets=[1, 5])], "given up", "parked, then skipped"),
        ([change("parked skip", offsets=[1, 6])], "settled", "settled"),
        ([change("release", first=3, last=5)], "given up", "within its budget"),
        ([change("route pause")], "settled", "settled"),
        (
            [change("ack", first=3, last=5), change("replay", first=0, last=9, reason="mended")],
            "operator",
            "a replay of it began later, ann: mended",
        ),
        (
            [change("replay", first=0, last=9), change("ack", first=3, last=5)],
            "operator",
            "settled undelivered by an operator, ann",
        ),
    ],
)
def test_below_the_watermark_the_audit_file_adds_what_it_knows(
    changes: list[dict[str, Any]], kind: str, text: str
) -> None:
    """The newest change that settled the entry undelivered counts, and a later replay is named."""
    fate = fate_of(5, "insert", facts(changes=changes))
    assert (fate.kind, text in fate.text) == (kind, True), fate


def test_a_kind_in_the_offset_log_outranks_the_audit_file() -> None:
    """What the route itself recorded is not reinterpreted."""
    changes = [change("ack", first=3, last=5)]
    fate = fate_of(5, "insert", facts(watermark=3, above=(Range(4, 6),), changes=changes))
    assert fate.kind == "settled"


@pytest.mark.parametrize(
    ("event", "kind", "text"),
    [
        ("entry-skipped", "given up", "on_error: skip"),
        ("parked-delivered", "settled", "delivered after it had been parked"),
        ("lines-dropped", "settled", "at or below the watermark"),
    ],
)
def test_a_line_about_an_entry_outlives_the_offset_log(event: str, kind: str, text: str) -> None:
    """A skipped entry is not shown as settled once the watermark has absorbed it."""
    found = RouteFacts(RouteState(watermark=9), takes=True, given_up={"event": event, "offset": 5})
    fate = fate_of(5, "insert", found)
    assert (fate.kind, text in fate.text) == (kind, True), fate
    replayed = replace(found, changes=[change("ack", first=3, last=5)])
    assert fate_of(5, "insert", replayed).kind == "operator"


def test_no_route_delivers_a_position() -> None:
    """A noop is left out, whatever else is recorded."""
    assert fate_of(5, NOOP, facts(watermark=-1)).kind == "filtered"
