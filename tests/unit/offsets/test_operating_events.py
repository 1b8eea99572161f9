"""Pauses, steps and filtered replays as durable events of a route, old and new."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from transporter.errors import OffsetRefused
from transporter.offsets import state as states
from transporter.offsets.offset_log import OffsetLog, read_state
from transporter.offsets.state import (
    Range,
    Replay,
    RouteState,
    advance_replay,
    begin_replay,
    cancel_replay,
    pause,
    resume,
    settle,
    step_to,
)

if TYPE_CHECKING:
    from pathlib import Path


TEN = settle(RouteState(), Range(0, 9))


def test_a_pause_outlives_the_process(tmp_path: Path) -> None:
    """A paused route is paused when it is opened again, until it is resumed."""
    with OffsetLog(tmp_path, "r") as offsets:
        offsets.pause()
    assert read_state(tmp_path, "r").paused
    with OffsetLog(tmp_path, "r") as offsets:
        assert offsets.state.delivery_limit() == -1
        offsets.resume()
    assert read_state(tmp_path, "r").delivery_limit() is None


def test_a_step_is_allowed_to_a_paused_route_only(tmp_path: Path) -> None:
    """A step has a limit, and is refused for a route that is not paused."""
    with OffsetLog(tmp_path, "r") as offsets:
        with pytest.raises(OffsetRefused, match="not paused"):
            offsets.step(3)
        offsets.pause()
        assert offsets.step(3).delivery_limit() == 3
    assert read_state(tmp_path, "r").step == 3


@pytest.mark.parametrize("end", [pause, resume])
def test_whoever_pauses_or_resumes_means_no_older_step(end: object) -> None:
    """A new pause or resume ends an earlier step."""
    assert end(step_to(pause(TEN), 50)).step is None  # type: ignore[operator]


def test_a_step_never_reaches_from_live_entries_into_a_replay() -> None:
    """A replay's start, end and cancel each end a step."""
    stepping = step_to(pause(TEN), 12)
    replaying = begin_replay(stepping, 2, 5)
    assert (replaying.step, replaying.delivery_limit()) == (None, 1)
    at_its_end = advance_replay(step_to(replaying, 5), 5, 1)
    assert (at_its_end.replay, at_its_end.delivery_limit()) == (None, 9)
    assert cancel_replay(step_to(replaying, 5)).step is None


def test_a_replay_of_some_namespaces_is_durable(tmp_path: Path) -> None:
    """The filter of a replay is in its record and in every snapshot."""
    with OffsetLog(tmp_path, "r") as offsets:
        offsets.settle(Range(0, 9), 9)
        offsets.begin_replay(2, 5, "^orders")
        assert read_state(tmp_path, "r").replay == Replay(2, 5, 2, "^orders")
        offsets.advance_replay(3, 1)
    assert read_state(tmp_path, "r").replay == Replay(2, 5, 4, "^orders")


def test_records_of_older_versions_are_read() -> None:
    """A record of an older version has neither pause nor filter, and is read (Invariant 19)."""
    old = begin_replay(TEN, 2, 5).to_json()
    for name in ("paused", "step", "released", "retries", "only", "skips"):
        del old[name]
    del old["replay"]["namespace"]
    assert RouteState.from_json(json.loads(json.dumps(old))) == begin_replay(TEN, 2, 5)
    event = {"type": "replay", "first": 2, "last": 5}
    assert states.apply_event(TEN, event) == begin_replay(TEN, 2, 5)


def test_a_replay_without_a_filter_is_written_as_before() -> None:
    """A replay without a filter is written for older versions to read (Invariant 19)."""
    assert states.replay_begun_event(2, 5) == {"type": "replay", "first": 2, "last": 5}


def test_whoever_waits_for_a_state_hears_of_it(tmp_path: Path) -> None:
    """A wait ends at once when the state is reached, and otherwise at its timeout."""
    with OffsetLog(tmp_path, "r") as offsets:
        offsets.settle(Range(0, 4), 4)
        assert offsets.wait_for(lambda state: state.watermark == 4, 20)
        assert not offsets.wait_for(lambda state: state.watermark == 5, 0.01)
