"""Failure policy, with operators that act while an outcome is judged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from transporter.engine.routing.failure_policy import GO, Action, FailurePolicy
from transporter.offsets.given_up import GivenUpLog
from transporter.offsets.offset_log import OffsetLog
from transporter.offsets.state import Range, Replay
from transporter.protocol.messages import Failure, FailureKind, Outcome, Slice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LAST = 19


class Parking:
    """A parking that gives an operator time to act."""

    is_full = False

    def __init__(self, offsets: OffsetLog, meanwhile: Callable[[], object]) -> None:
        self._offsets, self._meanwhile = offsets, meanwhile

    def park(self, offset: int, error: str, attempts: int) -> None:
        self._meanwhile()
        self._offsets.settle(Range(offset, offset, "parked"), LAST)


@pytest.fixture
def offsets(tmp_path: Path) -> Iterator[OffsetLog]:
    """Return the offset log of a route that has delivered ten entries."""
    with OffsetLog(tmp_path, "r") as opened:
        opened.settle(Range(0, 9), LAST)
        yield opened


def judge(offsets: OffsetLog, on_error: str, meanwhile: Callable[[], object]) -> FailurePolicy:
    """Return the judge of a route that retries no failed entry."""
    config: Any = SimpleNamespace(name="r", on_error=on_error, retry=SimpleNamespace(attempts=1))
    log: Any = SimpleNamespace(durable=LAST)
    parking: Any = Parking(offsets, meanwhile)
    given_up = GivenUpLog(offsets.folder)
    return FailurePolicy(config, log, offsets, parking, given_up, lambda *_, **__: None)


def test_a_replay_that_begins_while_an_entry_is_set_aside_is_done(offsets: OffsetLog) -> None:
    """An entry parked behind the range of a new replay does not move the replay."""
    found = judge(offsets, "park", lambda: offsets.begin_replay(2, 5))
    alone = Slice(10, 10, generation=0, single=True)
    refused = Failure(FailureKind.REJECTED, "no", 10)
    assert found.decide(alone, Outcome(9, 0, 0, 0, {}, refused)) == GO
    assert offsets.state.replay == Replay(2, 5, 2)
    assert offsets.state.watermark == 10


@pytest.mark.parametrize("on_error", ["park", "skip"])
def test_a_replay_goes_on_behind_what_was_given_up(offsets: OffsetLog, on_error: str) -> None:
    """A replay goes on behind an entry that the sink refuses again."""
    offsets.begin_replay(2, 5)
    found = judge(offsets, on_error, lambda: None)
    alone = Slice(2, 2, generation=1, single=True)
    refused = Failure(FailureKind.REJECTED, "no", 2)
    assert found.decide(alone, Outcome(1, 0, 0, 0, {}, refused)) == GO
    assert offsets.state.replay == Replay(2, 5, 3)


@pytest.mark.parametrize("on_error", ["park", "skip", "stop"])
def test_a_replay_passes_nothing_that_another_shard_has_yet_to_deliver(
    offsets: OffsetLog, on_error: str
) -> None:
    """An entry whose worker died is given up once everything before it is delivered."""
    offsets.begin_replay(2, 8)
    found = judge(offsets, on_error, lambda: None)
    # Shards hang at 2, 3 and 5. The one at 5 is ended first.
    alone = Slice(2, 8, generation=1, single=True)
    assert found.decide_after_death(alone, 5) == GO
    assert offsets.state.replay == Replay(2, 8, 2)
    assert found.plan.cut(2, 8) == (4, False)
    first = Slice(2, 4, generation=1)
    assert found.decide(first, Outcome(4, 3, 0, 0, {})) == GO
    assert found.plan.cut(5, 8) == (8, True)
    rest = Slice(5, 8, generation=1, single=True)
    decision = found.decide_after_death(rest, 5)
    if on_error == "stop":
        assert (decision.action, decision.offset) == (Action.HALT, 5)
    else:
        assert decision == GO
        assert offsets.state.replay == Replay(2, 8, 6)


@pytest.mark.parametrize(
    "failure",
    [None, Failure(FailureKind.REJECTED, "no", 99), Failure(FailureKind.REJECTED, "no", -1)],
)
@pytest.mark.parametrize("single", [True, False])
def test_what_makes_no_progress_is_never_repeated_for_ever_without_a_wait(
    offsets: OffsetLog,
    failure: Failure | None,
    single: bool,
) -> None:
    """After a few rounds without progress a route waits or halts, whatever its worker answers."""
    found = judge(offsets, "stop", lambda: None)
    asked = Slice(10, 19, generation=0, single=single)
    outcome = Outcome(9, 0, 0, 0, {}, failure)
    verdicts = [found.decide(asked, outcome) for _ in range(30)]
    assert all(each.action is not Action.GO for each in verdicts[15:])
    assert all(each.problem for each in verdicts[15:])
    assert offsets.state.next_offset() == 10


def test_a_worker_that_dies_before_it_announces_anything_is_not_replaced_at_once_for_ever(
    offsets: OffsetLog,
) -> None:
    """Worker deaths before any announcement are followed by a wait."""
    found = judge(offsets, "stop", lambda: None)
    alone = Slice(10, 19, generation=0, single=True)
    verdicts = [found.decide_after_death(alone, None) for _ in range(30)]
    assert all(each.action is Action.WAIT for each in verdicts[15:])


def test_an_entry_that_is_named_wrongly_while_it_is_alone_has_its_attempts(
    offsets: OffsetLog,
) -> None:
    """In a slice delivered one at a time, a wrongly named failure counts for the next entry."""
    found = judge(offsets, "skip", lambda: None)
    alone = Slice(10, 19, generation=0, single=True)
    wrong = Failure(FailureKind.REJECTED, "no", 99)
    assert found.decide(alone, Outcome(9, 0, 0, 0, {}, wrong)) == GO
    assert offsets.state.next_offset() == 11
