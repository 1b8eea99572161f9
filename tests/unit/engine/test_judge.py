"""What operators do while an outcome is judged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from transporter.engine.judge import GO, Judge
from transporter.engine.protocol import Failure, FailureKind, Outcome, Slice
from transporter.engine.redelivery import Redelivery
from transporter.offsets.offset_log import OffsetLog
from transporter.offsets.state import Range, Replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LAST = 19


class Parking:
    """Sets an entry aside, which takes long enough for an operator to act."""

    full = False

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


def judge(offsets: OffsetLog, on_error: str, meanwhile: Callable[[], object]) -> Judge:
    """Return a judge of a route that gives an entry up when it has failed once."""
    config: Any = SimpleNamespace(name="r", on_error=on_error, retry=SimpleNamespace(attempts=1))
    log: Any = SimpleNamespace(durable=LAST)
    parking: Any = Parking(offsets, meanwhile)
    cutter: Any = SimpleNamespace(plan=Redelivery())
    return Judge(config, log, offsets, parking, cutter, lambda *_, **__: None)


def test_a_replay_that_begins_while_an_entry_is_set_aside_is_done(offsets: OffsetLog) -> None:
    """The entry behind the range that is to come again says nothing of that range."""
    found = judge(offsets, "park", lambda: offsets.begin_replay(2, 5))
    alone = Slice(10, 10, generation=0, single=True)
    refused = Failure(FailureKind.REJECTED, "no", 10)
    assert found.judge(alone, Outcome(9, 0, 0, 0, {}, refused)) == GO
    assert offsets.state.replay == Replay(2, 5, 2)
    assert offsets.state.watermark == 10


@pytest.mark.parametrize("on_error", ["park", "skip"])
def test_a_replay_goes_on_behind_what_was_given_up(offsets: OffsetLog, on_error: str) -> None:
    """An entry that the sink refuses again is not delivered for ever."""
    offsets.begin_replay(2, 5)
    found = judge(offsets, on_error, lambda: None)
    alone = Slice(2, 2, generation=1, single=True)
    refused = Failure(FailureKind.REJECTED, "no", 2)
    assert found.judge(alone, Outcome(1, 0, 0, 0, {}, refused)) == GO
    assert offsets.state.replay == Replay(2, 5, 3)
