"""The retention gate, which removals and replays pass one at a time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from compaction_tools import Frame, bases_of, letters, write_log

from transporter.audit import Operator
from transporter.control import operator_actions
from transporter.control.action_offsets import plan_replay
from transporter.control.requests import Replay
from transporter.errors import ActionRefused
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.index import index_path, reindex
from transporter.log.retention import RetentionSettings, apply_retention
from transporter.log.retention_gate import RetentionGate
from transporter.log.segment import segment_name
from transporter.offsets.offset_log import OffsetLog
from transporter.offsets.retention_holds import Hold, hold_of, lowest_hold
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from pathlib import Path

FIVE = [[Frame(letters("AB"))] for _ in range(5)]
ME = Operator("me", 1, 1)


def test_a_replay_waits_until_a_removal_is_over(tmp_path: Path) -> None:
    """A replay waits for the end of a removal inside the gate."""
    gate = RetentionGate()
    with OffsetLog(tmp_path, "route", gate=gate) as route:
        route.settle(Range(0, 9), 9)
        begun = threading.Thread(target=route.begin_replay, args=(2, 5))
        with gate:
            begun.start()
            begun.join(0.1)
            assert route.state.replay is None
        begun.join()
        assert route.state.replay is not None
        assert gate.hold_count == 1


def test_a_replay_that_begins_between_two_removals_is_seen(tmp_path: Path) -> None:
    """A replay between two removals is counted as a hold at the second (Invariant 11)."""
    last = write_log(tmp_path, FIVE)
    gate, asked = RetentionGate(), []
    with OffsetLog(tmp_path, "route", gate=gate) as route:
        route.settle(Range(0, last), last)

        def through() -> int:
            asked.append(hold_of("route", route.state).through)
            return asked[-1]

        removing = apply_retention(
            tmp_path, watermark=through, settings=RetentionSettings(0), now=0, gate=gate
        )
        assert [next(removing).end, next(removing).end] == [1, 3]
        # A sync of each offset log, and once is enough.
        assert asked == [last]
        route.begin_replay(6, 7)
        assert [each.end for each in removing] == [5]
        assert asked == [last, 5, 5]
    assert gate.removed_through == 5


def test_what_retention_took_from_a_planned_replay_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay whose planned entries were removed by retention is refused."""
    write_log(tmp_path, FIVE)

    def planned(*details: object) -> object:
        found = plan_replay(*details)  # type: ignore[arg-type]
        next(apply_retention(tmp_path, watermark=lambda: 9, settings=RetentionSettings(0), now=0))
        return found

    monkeypatch.setattr(operator_actions, "plan_replay", planned)
    request = Replay("route", first=0, last=7, reason="why")
    with CommitLog.open(tmp_path) as log, OffsetLog(tmp_path, "route", gate=log.gate) as route:
        route.settle(Range(0, 9), 9)
        with pytest.raises(ActionRefused, match="removed the entries before 2"):
            operator_actions.begin_replay(log, route, request, ME, upserts=None)
        assert route.state.replay is None


def test_no_index_is_left_of_a_segment_that_was_removed_meanwhile(tmp_path: Path) -> None:
    """An index rebuilt beside retention is removed with its segment."""
    write_log(tmp_path, FIVE)
    for path in tmp_path.glob("*.index"):
        path.unlink()
    gate = RetentionGate()
    removing = apply_retention(
        tmp_path, watermark=lambda: 9, settings=RetentionSettings(0), now=0, gate=gate
    )
    reindex(RealFileSystem(), tmp_path, lambda _: next(removing, None) and None, gate)
    assert bases_of(tmp_path) == [8]
    assert not [each for each in (0, 2, 4, 6) if index_path(tmp_path / segment_name(each)).exists()]


def test_the_order_of_holds_does_not_depend_on_names() -> None:
    """At one offset a replay comes before a route, and a route before a reader."""
    for names in ("abc", "cab", "bca"):
        reader = Hold(4, names[0], "reader")
        route = Hold(4, names[1])
        replay = Hold(4, names[2], "replay")
        assert lowest_hold([reader, route, replay]) == replay
        assert lowest_hold([reader, route]) == route
        assert lowest_hold([reader, route, Hold(3, "z", "reader")]) == Hold(3, "z", "reader")
    assert lowest_hold([]) is None
