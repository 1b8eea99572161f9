"""The mistakes of the ancestor's log, on real parts: each test fails if its mistake is made.

The numbers are those of the analysis of compose/transporter, by severity. Its first
two are about compaction, and are tested there.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from bulk_sink import BULK
from engine_tools import Events, delivered, make_pipeline, offsets, run_to_end, running, until
from log_tools import crash, offsets_of

from transporter.audit import AUDIT
from transporter.cli import app
from transporter.log.commit_log import CommitLog
from transporter.log.inspection import inspect
from transporter.log.reader import LogReader
from transporter.message import Entries, Message, messages_to_batch
from transporter.offsets.offset_log import read_state

if TYPE_CHECKING:
    from pathlib import Path

BULKY = {"adaptor": "bulk_sink:BulkWriter"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the idle intervals, so that no test waits for an idle thread."""
    monkeypatch.setattr("transporter.engine.routing.route.IDLE", 0.02)
    monkeypatch.setattr("transporter.engine.routing.session.IDLE", 0.02)
    monkeypatch.setattr("transporter.engine.workers.worker_connection.IDLE", 0.02)
    monkeypatch.setattr("transporter.engine.reading.feed.POLL", 0.02)


def numbers(first: int, last: int, namespace: str = "n") -> list[str]:
    """Return lines of a source, numbered like their future offsets."""
    return [f"{namespace} {number}" for number in range(first, last + 1)]


def watermark(folder: Path, route: str) -> int:
    """Return the watermark of *route* on disk."""
    return read_state(folder / "log", route).watermark


def test_two_routes_that_resume_each_get_their_own(tmp_path: Path) -> None:
    """Ancestor 3: of two sinks resumed at different offsets one got nothing, one got both's."""
    routes: dict[str, Any] = {"behind": {"writer": {"reject": [5]}}, "ahead": {}}
    run_to_end(make_pipeline(tmp_path, numbers(0, 19), **routes))
    assert (watermark(tmp_path, "behind"), watermark(tmp_path, "ahead")) == (4, 19)
    run_to_end(make_pipeline(tmp_path, numbers(20, 29), behind={}, ahead={}, new={}))
    assert offsets(tmp_path / "behind.jsonl") == [*range(5), *range(5, 30)]
    assert offsets(tmp_path / "ahead.jsonl") == list(range(30))
    assert offsets(tmp_path / "new.jsonl") == list(range(30))


def test_no_ack_comes_before_its_entry(tmp_path: Path) -> None:
    """Ancestor 4, too early: entries that a bulk failed to send were committed, and never sent."""
    out = {"writer": BULKY}
    (tmp_path / "out.broken").touch()
    engine = run_to_end(make_pipeline(tmp_path, numbers(0, 19), out=out))
    assert engine.halted == ["out"]
    assert offsets(tmp_path / "out.jsonl") == list(range(2 * BULK + BULK // 2))
    # Half of the third bulk is in the sink, and none of it counts, because none was acked.
    assert watermark(tmp_path, "out") == 2 * BULK - 1
    (tmp_path / "out.broken").unlink()
    run_to_end(make_pipeline(tmp_path, [], out=out))
    assert offsets(tmp_path / "out.jsonl")[2 * BULK + BULK // 2 :] == list(range(2 * BULK, 20))
    assert watermark(tmp_path, "out") == 19


STEP = """
from transporter.message import Message


def anew(message):
    return Message(namespace="made", data=b"new " + message.data)
"""


def test_no_ack_is_lost_where_a_step_makes_a_new_message(tmp_path: Path) -> None:
    """Ancestor 4, never: steps that built a new message lost the ack, and later starts failed."""
    (tmp_path / "ancestor_steps.py").write_text(STEP)
    out = {"steps": [{"python": {"function": "ancestor_steps:anew"}}]}
    run_to_end(make_pipeline(tmp_path, numbers(0, 19), out=out))
    assert watermark(tmp_path, "out") == 19
    for first in (20, 21):
        run_to_end(make_pipeline(tmp_path, numbers(first, first), out=out))
    lines = delivered(tmp_path / "out.jsonl")
    assert [line["data"] for line in lines] == [f"new {number}" for number in range(22)]


@pytest.mark.parametrize("cut", [5, 1, 100])
def test_a_torn_tail_takes_no_later_entry_with_it(tmp_path: Path, cut: int) -> None:
    """Ancestor 5: a torn entry made the later ones and the log unreadable."""
    directory = tmp_path / "log"
    log = CommitLog.open(directory)
    for number in range(11):
        log.append(messages_to_batch([Message("n", b"%d" % number)]), "r")
    path, end = log._active.path, log._active.byte
    crash(log)
    os.truncate(path, end - cut)
    assert inspect(directory).last == 9
    with CommitLog.open(directory) as log:
        assert log.durable == 9
        for number in range(10, 15):
            log.append(messages_to_batch([Message("n", b"%d" % number)]), "r")
    with LogReader(directory) as reader:
        found = [
            entry for batch in reader.read(0, inspect(directory).last) for entry in Entries(batch)
        ]
    assert [entry.message.data for entry in found] == [b"%d" % number for number in range(15)]
    assert offsets_of(directory) == sorted({entry.offset for entry in found})


def test_a_route_starts_where_the_log_ends_in_what_it_filters(tmp_path: Path) -> None:
    """Ancestor 6: with a filtered entry at the log's end, a bulk sink never started again."""
    out = {"namespace": "^orders", "writer": BULKY}
    lines = [*numbers(0, 5, "orders.placed"), *numbers(6, 8, "users.new")]
    run_to_end(make_pipeline(tmp_path, lines, out=out))
    assert watermark(tmp_path, "out") == 8
    for _ in range(2):
        events = Events()
        engine = run_to_end(make_pipeline(tmp_path, [], out=out), events)
        assert (engine.halted, events.named("route-retrying")) == ([], [])
    run_to_end(make_pipeline(tmp_path, numbers(9, 10, "orders.placed"), out=out))
    assert offsets(tmp_path / "out.jsonl") == [*range(6), 9, 10]


CHANGING = """
import dataclasses
import json


def turn(message):
    document = json.loads(message.data)
    document["turned"] = document.pop("b")
    return dataclasses.replace(message, data=json.dumps(document).encode())
"""


def test_no_route_sees_what_another_makes_of_an_entry(tmp_path: Path) -> None:
    """Ancestor 7: a field that one sink's transform left out was gone from the other's message."""
    (tmp_path / "ancestor_changes.py").write_text(CHANGING)
    lines = [f'n {{"id": {number}, "a": 1, "b": 2}}' for number in range(500)]
    run_to_end(
        make_pipeline(
            tmp_path,
            lines,
            omits={"steps": [{"omit": {"fields": ["a"]}}]},
            turns={"steps": [{"python": {"function": "ancestor_changes:turn"}}]},
            plain={},
        )
    )
    for route, fields in {
        "omits": {"b": 2},
        "turns": {"a": 1, "turned": 2},
        "plain": {"a": 1, "b": 2},
    }.items():
        found = [json.loads(line["data"]) for line in delivered(tmp_path / f"{route}.jsonl")]
        assert found == [{"id": number, **fields} for number in range(500)], route


def test_a_forward_ack_acks_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ancestor 8: marking a later offset returned OK and did nothing, or dropped namespaces."""
    lines = ["orders.placed 0", "users.new 1", "orders.paid 2", *numbers(3, 9)]
    halting = {"writer": {"reject": [4]}}
    run_to_end(make_pipeline(tmp_path, lines, out=halting))
    log = tmp_path / "log"
    before = read_state(log, "out")
    assert before.watermark == 3
    assert app.execute(["ack", str(log), "out", "4..6", "--reason", "ticket 7"]) == 0
    told = "route out: acked 4..6; watermark 6\n"
    assert capsys.readouterr().out == told
    after = read_state(log, "out")
    assert (after.watermark, after.namespaces) == (6, before.namespaces)
    audit = json.loads((log / AUDIT).read_text().splitlines()[0])
    assert (audit["first"], audit["last"], audit["reason"]) == (4, 6, "ticket 7")
    run_to_end(make_pipeline(tmp_path, [], out=halting))
    assert offsets(tmp_path / "out.jsonl") == [0, 1, 2, 3, 7, 8, 9]
    # Beyond the log: refused with the reason, and nothing changes.
    assert app.execute(["ack", str(log), "out", "10"]) == 1
    assert "offset 10 is not in the log" in capsys.readouterr().err
    assert watermark(tmp_path, "out") == 9


@pytest.mark.exhaustive
def test_an_operator_does_not_race_an_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ancestor 8: its offset commands could change files under a live process."""
    pipeline = make_pipeline(tmp_path, numbers(0, 9), end=False, out={"writer": {"reject": [4]}})
    log = str(tmp_path / "log")
    with running(pipeline) as engine:
        until(lambda: engine.halted == ["out"])
        before = read_state(tmp_path / "log", "out")
        for command in (["ack", log, "out", "4"], ["replay", log, "out", "--from", "0"]):
            assert app.execute(command) == 3
            assert f"in use by the process with pid {os.getpid()}" in capsys.readouterr().err
        assert read_state(tmp_path / "log", "out") == before
        assert app.execute(["offsets", "show", log, "out"]) == 0
        assert "watermark   3" in capsys.readouterr().out
    assert app.execute(["ack", log, "out", "4"]) == 0
    assert watermark(tmp_path, "out") == 4
