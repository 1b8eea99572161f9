"""Entries that a repair could not recover, as routes and operators meet them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from engine_tools import Events, make_pipeline, offsets, run_to_end
from log_tools import damage

from transporter.cli.app import execute
from transporter.log.commit_log import CommitLog
from transporter.log.reader import LogReader
from transporter.offsets.offset_log import OffsetLog, read_state
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa
    import pytest

    Make = Callable[..., pa.RecordBatch]

LAST = 11


def damaged_log(directory: Path, batch: Make) -> None:
    """Log twelve entries, two a frame. ``behind`` has 0..1, ``ahead`` all, and 4..5 are damaged."""
    with CommitLog.open(directory) as log:
        for _ in range(6):
            log.append(batch(2), "other")
        for route, through in (("behind", 1), ("ahead", LAST)):
            with OffsetLog(directory, route) as offset_log:
                offset_log.settle(Range(0, through), log.durable)
        with OffsetLog(directory, "ahead") as offset_log:
            offset_log.begin_replay(2, 9)
    with LogReader(directory) as reader:
        hurt = next(reader.frames(4, 4)).frame
    damage(directory, hurt.payload_byte + 3)


def test_a_route_halts_at_lost_entries_until_they_are_acked(
    tmp_path: Path, batch: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """Verify finds damage, repair declares it, and an ack lets the route go on (Invariant 4).

    A replay of a route that had passed the entries before leaves them out.
    """
    directory = tmp_path / "log"
    damaged_log(directory, batch)
    assert execute(["log", "verify", str(directory), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert not answer["ok"]
    assert [each["lost"] for each in answer["result"]["damages"]] == [[4, 5]]
    assert execute(["log", "repair", str(directory), "--yes"]) == 0
    assert "ROUTE 4..5" in capsys.readouterr().out
    assert execute(["log", "verify", str(directory)]) == 0
    assert "4..5 were lost before" in capsys.readouterr().out

    pipeline = make_pipeline(tmp_path, [], behind={}, ahead={})
    events = Events()
    engine = run_to_end(pipeline, events)
    assert engine.halted == ["behind"]
    assert "4..5 were lost" in events.named("route-stopped")[0]["problem"]
    assert offsets(tmp_path / "behind.jsonl") == [2, 3]
    assert offsets(tmp_path / "ahead.jsonl") == [2, 3, 6, 7, 8, 9]
    assert read_state(directory, "ahead").replay is None

    assert execute(["ack", str(directory), "behind", "4..5", "--reason", "gone"]) == 0
    engine = run_to_end(pipeline)
    assert not engine.halted
    assert offsets(tmp_path / "behind.jsonl") == [2, 3, *range(6, LAST + 1)]


def test_a_partial_ack_of_lost_entries_names_the_rest(
    tmp_path: Path, batch: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """A route halts at lost offsets that its operator has not acked."""
    directory = tmp_path / "log"
    damaged_log(directory, batch)
    assert execute(["log", "repair", str(directory), "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["quarantined"]
    assert execute(["ack", str(directory), "behind", "2..4"]) == 0
    events = Events()
    run_to_end(make_pipeline(tmp_path, [], behind={}, ahead={}), events)
    assert "the entries 5..5 were lost" in events.named("route-stopped")[0]["problem"]
    assert not (tmp_path / "behind.jsonl").exists()
