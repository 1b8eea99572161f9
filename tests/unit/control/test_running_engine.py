"""Operators' actions on a running engine, with their effects and refusals."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import PATIENCE, delivered, offsets, until
from live_tools import ME, Operated, lines, operated, sink

from transporter.audit import AUDIT
from transporter.cli.status import headline
from transporter.control import requests
from transporter.control import running_engine as module
from transporter.control.offline_status import read_status
from transporter.engine.readiness import readiness_report
from transporter.errors import (
    ActionRefused,
    EngineUnreachable,
    EnvironmentFault,
    OffsetRefused,
    UnknownName,
)
from transporter.log.commit_log import CommitLog
from transporter.log.compaction import CompactionSettings, compact
from transporter.offsets.offset_log import OffsetLog, declared_routes, read_state, route_folder
from transporter.offsets.parked import parked_path
from transporter.pipeline.problems import InvalidPipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def test_a_paused_route_delivers_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    """A pause blocks one route only, shows in its state, and a resume goes on without a gap."""
    with operated(tmp_path, lines(3), out={}, other={}) as op:
        until(lambda: offsets(sink(tmp_path)) == [0, 1, 2])
        assert op(requests.Pause("out", "moving"))["in_effect"]
        op.feed(*lines(3, 3))
        until(lambda: offsets(sink(tmp_path, "other")) == [0, 1, 2, 3, 4, 5])
        assert offsets(sink(tmp_path)) == [0, 1, 2]
        assert (op.route()["state"], op.route()["lag"]) == ("paused", 3)
        assert op.route("other")["state"] == "running"
        op(requests.Resume("out"))
        until(lambda: offsets(sink(tmp_path)) == [0, 1, 2, 3, 4, 5])
        assert op.route()["state"] == "running"
    assert [each["action"] for each in op.audited()] == ["route pause", "route resume"]
    first = op.audited()[0]
    assert (first["who"], first["uid"], first["pid"], first["reason"]) == (
        "somebody",
        7,
        42,
        "moving",
    )


def test_a_pause_holds_over_a_restart(tmp_path: Path) -> None:
    """A route stays paused over a restart, even while the engine drains."""
    with operated(tmp_path, lines(2), out={}) as op:
        until(lambda: offsets(sink(tmp_path)) == [0, 1])
        op(requests.Pause("out"))
        op.feed(*lines(2, 2))
        until(lambda: op.route()["lag"] == 2)
    assert offsets(sink(tmp_path)) == [0, 1]
    with operated(tmp_path, [], out={}) as op:
        until(lambda: op.route()["state"] == "paused")
        assert offsets(sink(tmp_path)) == [0, 1]
        op(requests.Resume("out"))
        until(lambda: offsets(sink(tmp_path)) == [0, 1, 2, 3])


def test_a_step_delivers_one_entry_that_the_route_takes(tmp_path: Path) -> None:
    """Each step skips filtered entries and delivers one entry, and the route stays paused."""
    with operated(tmp_path, lines(6), out={"namespace": "^b"}, gate={}) as op:
        until(lambda: offsets(sink(tmp_path)) == [1, 3, 5])
        with pytest.raises(ActionRefused, match="not paused"):
            op(requests.Step("out"))
        op(requests.Pause("out"))
        with pytest.raises(ActionRefused, match="no entry to deliver yet"):
            op(requests.Step("out"))
        op.feed(*lines(6, 6))
        until(lambda: op.engine.log.durable == 11)
        for expected in (7, 9):
            assert op(requests.Step("out"))["settled"]
            assert offsets(sink(tmp_path))[-1] == expected
        assert op.route()["state"] == "paused"
        assert op.route()["watermark"] == 9


ONLY = {"field": "n", "operator": "eq", "value": 0}


@pytest.mark.parametrize(
    ("keys", "outcome", "reason"),
    [
        ({}, "delivered", ""),
        ({"on_error": "park", "writer": {"reject": [1]}}, "parked", "no 1 here"),
        ({"on_error": "skip", "writer": {"reject": [1]}}, "skipped", "no 1 here"),
        ({"steps": [{"only": ONLY}]}, "skipped", "filter or steps drop it"),
        ({"on_error": "stop", "writer": {"reject": [1]}}, "failed", "no 1 here"),
    ],
    ids=["delivered", "parked", "skipped", "left out", "failed"],
)
def test_a_step_reports_how_its_entry_was_settled(
    tmp_path: Path, keys: dict[str, Any], outcome: str, reason: str
) -> None:
    """A parked, skipped or failed entry is not reported as delivered, and has its reason."""
    with operated(tmp_path, ['a {"n":0}'], out=keys) as op:
        until(lambda: op.route()["watermark"] == 0)
        op(requests.Pause("out"))
        op.feed('b {"n":1}')
        until(lambda: op.engine.log.durable == 1)
        began = time.monotonic()
        told = op(requests.Step("out"))
        assert (told["outcome"], told["settled"]) == (outcome, outcome != "failed")
        assert reason in told["reason"]
        shown = told["reason"].removeprefix("offset 1: ")
        assert told["done"].startswith("offset 1 ")
        assert told["done"].endswith(f": {shown}" if shown else "the route stays paused")
        assert told["done"].count("offset") == 1, "not named twice"
        assert time.monotonic() - began < module.NOTICE, "a halt is known at once"


def test_a_step_into_a_sink_that_is_away_has_failed_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that is being retried is reported as failed, with the reason, and is not settled."""
    monkeypatch.setattr(module, "NOTICE", 0.5)
    with operated(tmp_path, lines(1), out={}) as op:
        until(lambda: op.route()["watermark"] == 0)
        op(requests.Pause("out"))
        (tmp_path / "out.down").write_text("write")
        op.feed(*lines(1, 1))
        until(lambda: op.engine.log.durable == 1)
        told = op(requests.Step("out"))
        assert (told["outcome"], told["settled"]) == ("failed", False)
        assert "down for the test" in told["reason"]
        (tmp_path / "out.down").unlink()
        until(lambda: op.route()["watermark"] == 1)


def test_a_replay_is_stepped_through_as_well(tmp_path: Path) -> None:
    """Steps of a paused route in a replay deliver its matching entries one by one, then end it."""
    with operated(tmp_path, lines(6), out={}) as op:
        until(lambda: len(offsets(sink(tmp_path))) == 6)
        op(requests.Pause("out"))
        op(requests.Replay("out", first=0, last=4, namespace="^b"))
        assert [op(requests.Step("out"))["settled"] for _ in range(2)] == [True, True]
        assert offsets(sink(tmp_path))[6:] == [1, 3]
        assert op(requests.Step("out"))["replay"] is None
        assert offsets(sink(tmp_path))[6:] == [1, 3]


def test_a_replay_of_a_namespace_passes_all_others(tmp_path: Path) -> None:
    """Only matching entries are replayed, in order, in a new generation, before new entries."""
    with operated(tmp_path, lines(8), out={"slice_rows": 3}) as op:
        until(lambda: op.route()["watermark"] == 7)
        told = op(requests.Replay("out", first=1, last=6, namespace="^a", dry_run=True))
        assert (told["entries"], told["first"], told["last"]) == (3, 1, 6)
        assert op.route()["replay"] is None
        assert op(requests.Replay("out", first=1, last=6, namespace="^a"))["generation"] == 1
        op.feed("a new")
        until(lambda: len(offsets(sink(tmp_path))) == 12)
        again = delivered(sink(tmp_path))[8:]
        assert [(each["offset"], each["generation"]) for each in again] == [
            (2, 1),
            (4, 1),
            (6, 1),
            (8, 1),
        ]


def endless(looking: threading.Event) -> Callable[..., Any]:
    """Return a function that reads a log without an end, frame after frame."""

    def look(*values: Any) -> Iterator[Any]:
        while True:
            looking.set()
            time.sleep(0.01)
            values[-1](0)
            yield from ()

    return look


@pytest.mark.parametrize("ends", ["client", "engine"])
def test_a_long_look_holds_nobody_and_ends_with_whoever_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """A long dry run does not block a pause, and ends with its client or the engine."""
    looking, gone = threading.Event(), threading.Event()
    raised: list[BaseException] = []
    monkeypatch.setattr("transporter.control.action_offsets.matching_entries", endless(looking))
    with operated(tmp_path, lines(4), out={}) as op:
        until(lambda: op.route()["watermark"] == 3)

        def look() -> None:
            try:
                op.live.perform(requests.Replay("out", first=0, dry_run=True), ME, gone.is_set)
            except EngineUnreachable as error:
                raised.append(error)

        asking = threading.Thread(target=look, daemon=True)
        asking.start()
        assert looking.wait(PATIENCE)
        pausing = threading.Thread(target=op, args=(requests.Pause("out"),), daemon=True)
        pausing.start()
        pausing.join(PATIENCE)
        assert not pausing.is_alive()
        if ends == "client":
            gone.set()
        else:
            op.engine.stop()
        asking.join(PATIENCE)
        assert len(raised) == 1


def test_a_step_that_looks_for_its_entry_holds_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A route can be resumed while a step still searches for its entry."""
    looking, look = threading.Event(), threading.Event()
    original = module.next_entry

    def slow(*values: Any) -> int:
        looking.set()
        assert look.wait(PATIENCE)
        return original(*values)

    monkeypatch.setattr(module, "next_entry", slow)
    with operated(tmp_path, lines(2), out={}) as op:
        until(lambda: op.route()["watermark"] == 1)
        op(requests.Pause("out"))
        op.feed(*lines(2, 2))
        until(lambda: op.engine.log.durable == 3)
        refused: list[BaseException] = []

        def step() -> None:
            try:
                op(requests.Step("out"))
            except ActionRefused as error:
                refused.append(error)

        stepping = threading.Thread(target=step, daemon=True)
        stepping.start()
        assert looking.wait(PATIENCE)
        op(requests.Resume("out"))
        until(lambda: op.route()["watermark"] == 3)
        look.set()
        stepping.join(PATIENCE)
        assert "not paused" in str(refused[0])


def test_a_replay_over_what_compaction_dropped_is_refused_unless_partial(tmp_path: Path) -> None:
    """A running engine counts the dropped entries like the offline command."""
    with operated(tmp_path, lines(6), out={}) as op:
        until(lambda: op.route()["watermark"] == 5)
        log = op.engine.log
        log._segment_bytes = 1
        op.feed(*lines(1, 6))
        until(lambda: op.route()["watermark"] == 6)
        settings = CompactionSettings(0.0)
        compact(log.directory, watermark=lambda: 6, settings=settings, now=1 << 60, gate=log.gate)
        refused = r"of 0\.\.6 compaction has dropped 4 entries; add --partial"
        for dry_run in (True, False):
            with pytest.raises(ActionRefused, match=refused):
                op(requests.Replay("out", first=0, dry_run=dry_run))
        seen = op(requests.Replay("out", first=0, partial=True, dry_run=True))
        assert (seen["dropped"], seen["entries"]) == (4, 3)
        assert op(requests.LogMetadata())["dropped"] == 4
        assert op(requests.Replay("out", first=0, partial=True))["dropped"] == 4
        # A worker may have the old file open still, and deliver more entries than are left.
        until(lambda: offsets(sink(tmp_path))[-3:] == [4, 5, 6] and not op.route()["replay"])


def test_a_replay_can_be_cancelled(tmp_path: Path) -> None:
    """A cancelled replay delivers no more, and the route goes on with new entries."""
    with operated(tmp_path, lines(4), out={}) as op:
        until(lambda: len(offsets(sink(tmp_path))) == 4)
        with pytest.raises(ActionRefused, match="no replay to cancel"):
            op(requests.CancelReplay("out"))
        op(requests.Pause("out"))
        op(requests.Replay("out", first=0))
        op(requests.CancelReplay("out", "wrong one"))
        op(requests.Resume("out"))
        op.feed("a new")
        until(lambda: len(offsets(sink(tmp_path))) == 5)
        assert offsets(sink(tmp_path)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (requests.Replay("out", first=3, last=9), "up to 3 only"),
        (requests.Replay("out", first=9), "there is nothing to replay"),
        (requests.Replay("out", since=1 << 60), "nothing was logged"),
        (requests.Replay("out", first=0, namespace="("), "not a regular expression"),
        (requests.Ack("out", 2, 99), "not in the log"),
        (requests.RetryParked("out"), "nothing is parked"),
        (requests.SkipParked("out", 1, 2), "nothing is parked"),
        (requests.Ack("none", 0, 1), "no route 'none'"),
        (requests.Forget("out"), "is running"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_and_not_audited(
    tmp_path: Path, request_: requests.Request, problem: str
) -> None:
    """A refused action changes nothing, has a reason, and is not in the audit file."""
    with operated(tmp_path, lines(4), out={}) as op:
        until(lambda: op.route()["watermark"] == 3)
        before = op.route()
        with pytest.raises((ActionRefused, OffsetRefused), match=problem):
            op(request_)
        assert op.route() == before
        assert not (tmp_path / "log" / AUDIT).exists()


def test_an_ack_lets_a_halted_route_go_on(tmp_path: Path) -> None:
    """A route that stopped at an entry goes on behind it after an ack, without a restart."""
    with operated(tmp_path, lines(5), out={"writer": {"reject": [2]}}) as op:
        op.events.await_count("route-stopped")
        assert (op.route()["state"], op.route()["watermark"]) == ("stopped", 1)
        op(requests.Ack("out", 2, 2, "broken"))
        until(lambda: offsets(sink(tmp_path)) == [0, 1, 3, 4])
        assert op.route()["state"] == "running"


def test_a_halted_route_tries_again_when_it_is_told_to(tmp_path: Path) -> None:
    """A resume delivers the refused entries once the sink accepts them."""
    down = tmp_path / "out.down"
    down.write_text("fault")
    with operated(tmp_path, lines(3), out={}) as op:
        op.events.await_count("route-stopped")
        down.unlink()
        assert offsets(sink(tmp_path)) == []
        op(requests.Resume("out"))
        until(lambda: offsets(sink(tmp_path)) == [0, 1, 2])


def test_a_dead_sink_is_paused_acked_and_resumed(tmp_path: Path) -> None:
    """A pause ends the wait between attempts, and acked entries are not sent."""
    down = tmp_path / "out.down"
    down.write_text("write")
    retry = {"attempts": 2, "backoff": "20s..30s"}
    with operated(tmp_path, lines(4), out={"retry": retry}) as op:
        op.events.await_count("route-retrying")
        waiting = op.route()["waiting"]
        assert 0 <= waiting["since"] < 20
        assert 0 < waiting["left"] <= 30
        assert op(requests.Pause("out"))["in_effect"]
        assert (op.route()["state"], op.route()["waiting"]) == ("paused", None)
        op(requests.Ack("out", 0, 1, "nobody wants them"))
        down.unlink()
        op(requests.Resume("out"))
        until(lambda: offsets(sink(tmp_path)) == [2, 3])
        assert len(op.events.named("route-retrying")) == 1


def test_a_resume_makes_a_retrying_route_try_at_once(tmp_path: Path) -> None:
    """A resume ends the back-off at once."""
    down = tmp_path / "out.down"
    down.write_text("write")
    retry = {"attempts": 2, "backoff": "10m..20m"}
    with operated(tmp_path, lines(2), out={"retry": retry}) as op:
        op.events.await_count("route-retrying")
        down.unlink()
        op(requests.Resume("out"))
        until(lambda: offsets(sink(tmp_path)) == [0, 1])
        until(lambda: op.route()["waiting"] is None)


def test_an_ack_inside_a_replay_moves_that_on(tmp_path: Path) -> None:
    """A replay that is stuck at an entry goes on behind the acked range."""
    with operated(tmp_path, lines(5), out={}) as op:
        until(lambda: len(offsets(sink(tmp_path))) == 5)
        op(requests.Pause("out"))
        op(requests.Replay("out", first=0, last=4))
        assert op(requests.Ack("out", 0, 2))["replay"]["next"] == 3
        op(requests.Resume("out"))
        until(lambda: offsets(sink(tmp_path))[5:] == [3, 4])


def test_what_was_acked_while_it_was_failing_is_not_parked(tmp_path: Path) -> None:
    """An entry that is acked during its last attempt is settled, and not parked."""
    (tmp_path / "out.paused").touch()
    writer = {"pause_at": 1}
    keys = {"on_error": "park", "retry": {"attempts": 1, "backoff": "1ms..2ms"}, "writer": writer}
    with operated(tmp_path, lines(3), out=keys) as op:
        until((tmp_path / "out.waiting").exists)
        op.change(lambda document: document["routes"][0]["writer"].update(reject=[1]))
        op(requests.Ack("out", 1, 1, "given up"))
        # The slice under way is still the old worker's. It delivers 1, or fails at it.
        (tmp_path / "out.paused").unlink()
        until(lambda: op.route()["watermark"] == 2)
        assert op.route()["parked"] == 0


def test_parked_entries_are_skipped_between_slices(tmp_path: Path) -> None:
    """Skipped entries are removed durably from the running route, and are not delivered."""
    with operated(tmp_path, lines(5), out={"on_error": "park", "writer": {"reject": [1, 3]}}) as op:
        until(lambda: op.route()["parked"] == 2)
        assert op(requests.SkipParked("out", 0, 2, "test order"))["offsets"] == [1]
        until(lambda: op.route()["parked"] == 1)
        assert not parked_path(route_folder(tmp_path / "log", "out"), 1).exists()


def test_a_skip_waits_for_the_slice_and_is_withdrawn_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A skip that times out behind a slow slice changes nothing, and is refused with the reason."""
    monkeypatch.setattr(module, "SLICE", 0.2)
    keys = {"on_error": "park", "writer": {"reject": [1], "pause_at": 3}}
    with operated(tmp_path, lines(2), out=keys) as op:
        until(lambda: op.route()["parked"] == 1)
        (tmp_path / "out.paused").touch()
        op.feed(*lines(2, 2))
        until((tmp_path / "out.waiting").exists)
        with pytest.raises(EngineUnreachable, match="nothing was changed"):
            op(requests.SkipParked("out", 1, 1))
        # An action that needs no slice to end does not wait for one.
        assert op(requests.Ack("out", 3, 3))["watermark"] >= 1
        (tmp_path / "out.paused").unlink()
        until(lambda: op.route()["watermark"] == 3)
        assert op.route()["parked"] == 1


def test_a_parked_entry_is_retried_with_a_mended_step(tmp_path: Path) -> None:
    """A parked entry is delivered by a retry after its step was corrected and reloaded."""
    keys = {"on_error": "park", "writer": {"reject": [1]}}
    with operated(tmp_path, lines(4), out=keys, other={}) as op:
        until(lambda: op.route()["watermark"] == 3)
        op.change(lambda document: document["routes"][0]["writer"].update(reject=[]))
        told = op(requests.Reload("mended"))
        assert "out" in told["routes"]
        assert told["pending"] == []
        op(requests.RetryParked("out"))
        until(lambda: offsets(sink(tmp_path)) == [0, 2, 3, 1])
        until(lambda: op.route()["parked"] == 0)
        op.events.await_count("pipeline-reloaded")


def test_the_documentation_has_every_field_of_the_status(tmp_path: Path) -> None:
    """The page lists the fields of a running engine, and of a log without one."""
    page = (Path(__file__).parents[3] / "docs" / "operating.md").read_text(encoding="utf-8")
    rows = page.partition("### The fields of `status --json`")[2].partition("\n## ")[0]
    live: dict[str, set[str]] = defaultdict(set)
    stopped: dict[str, set[str]] = defaultdict(set)
    thing = ""
    for row in rows.split("\n|")[3:]:
        cells = [cell.strip() for cell in row.split("|")]
        thing = cells[0] or thing
        fields = set(re.findall(r"`(\w+)`", cells[1]))
        live[thing] |= fields
        stopped[thing] |= fields if cells[2] else set()
    with operated(tmp_path, lines(2), out={}) as op:
        until(lambda: op.route()["watermark"] == 1)
        op(requests.PauseReader("in"))
        running = op(requests.Status())
    for found, documented in ((running, live), (read_status(tmp_path / "log"), stopped)):
        assert set(found) == documented["result"]
        assert {name for each in found["readers"] for name in each} == documented["reader"]
        assert {name for each in found["routes"] for name in each} == documented["route"]


def reader(op: Operated) -> dict[str, Any]:
    """Return the status of the reader."""
    (found,) = op(requests.Status())["readers"]
    return dict(found)


def test_a_paused_reader_stays_so_over_a_restart(tmp_path: Path) -> None:
    """A paused reader reads nothing until it is resumed, shows in the status, and is audited."""
    with operated(tmp_path, lines(2), out={}) as op:
        until(lambda: offsets(sink(tmp_path)) == [0, 1])
        done = op(requests.PauseReader("in", "upgrade"))
        assert (done["done"], done["state"], done["in_effect"]) == ("paused", "paused", True)
        op.feed(*lines(2, 2))
        assert reader(op)["state"] == "paused"
        assert op.route()["state"] == "running"
        assert op.events.named("operator-acted")[0]["reader"] == "in"
    with operated(tmp_path, [], out={}) as op:
        op.events.await_count("reader-paused")
        time.sleep(0.1)
        assert (op.engine.log.durable, reader(op)["state"]) == (1, "paused")
        done = op(requests.ResumeReader("in"))
        assert (done["done"], done["state"], done["problem"]) == ("resumed", "running", "")
        assert op(requests.Resume("out"))["done"] == "was not paused"
        assert op(requests.ResumeReader("in"))["done"] == "was not paused"
        until(lambda: offsets(sink(tmp_path)) == [0, 1, 2, 3])
        actions = op.audited()
        audited = [(each["action"], each["reader"], each["reason"]) for each in actions[:2]]
    assert audited == [("reader pause", "in", "upgrade"), ("reader resume", "in", "")]
    with operated(tmp_path, [], out={}) as op:
        until(lambda: reader(op)["state"] == "running")


def test_a_reader_that_has_stopped_is_named_with_its_reason_and_restarted(tmp_path: Path) -> None:
    """Only a restart opens a stopped reader, and a failed restart reports its reason."""
    with operated(tmp_path, lines(2), out={}) as op:
        until(lambda: offsets(sink(tmp_path)) == [0, 1])
        source = tmp_path / "source.txt"
        source.rename(tmp_path / "aside.txt")
        until(lambda: reader(op)["state"] == "stopped")
        for request in (requests.PauseReader("in"), requests.ResumeReader("in")):
            with pytest.raises(ActionRefused, match=r"has stopped: FileNotFoundError.*restart"):
                op(request)
        done = op(requests.RestartReader("in"))
        assert (done["state"], done["in_effect"]) == ("stopped", True)
        assert "FileNotFoundError" in done["problem"]
        (tmp_path / "aside.txt").rename(source)
        op.feed(*lines(1, 2))
        assert op(requests.RestartReader("in", "it is back"))["state"] == "running"
        until(lambda: offsets(sink(tmp_path)) == [0, 1, 2])
        assert {each["action"] for each in op.audited()} == {"reader restart"}


def test_what_cannot_be_done_to_a_reader_is_refused(tmp_path: Path) -> None:
    """An unknown name lists the known ones, and a paused reader is resumed, not restarted."""
    with operated(tmp_path, lines(1), out={}) as op:
        with pytest.raises(UnknownName, match=r"no reader 'none'.*\(in\)"):
            op(requests.PauseReader("none"))
        with pytest.raises(UnknownName, match=r"no route 'none'.*\(out\)"):
            op(requests.Pause("none"))
        op(requests.PauseReader("in"))
        with pytest.raises(ActionRefused, match="is paused; resume it"):
            op(requests.RestartReader("in"))
        assert [each["action"] for each in op.audited()] == ["reader pause"]


def test_a_module_beside_the_file_is_imported_anew(tmp_path: Path) -> None:
    """A reload imports the current code of a step, not the code of the start."""
    code = (
        "from dataclasses import replace\n\n\n"
        "def change(message):\n    return replace(message, data=b'{}')\n"
    )
    (tmp_path / "mystep.py").write_text(code.replace("{}", "old"))
    with operated(
        tmp_path, lines(1), out={"steps": [{"python": {"function": "mystep:change"}}]}
    ) as op:
        until(lambda: len(delivered(sink(tmp_path))) == 1)
        (tmp_path / "mystep.py").write_text(code.replace("{}", "brand new"))
        assert op(requests.Reload())["routes"] == ["out"]
        op.feed("a 1")
        until(lambda: len(delivered(sink(tmp_path))) == 2)
        assert [each["data"] for each in delivered(sink(tmp_path))] == ["old", "brand new"]


def test_a_reload_that_changes_what_it_may_not_changes_nothing(tmp_path: Path) -> None:
    """The refusal names each problem's file and line, and allowed changes are not made either."""

    def edit(document: dict[str, Any]) -> None:
        document["log"]["segment_bytes"] = "1MiB"
        document["routes"][0]["namespace"] = "^b"
        document["spark"] = {"master": "local[2]"}

    with operated(tmp_path, lines(2), out={}) as op:
        until(lambda: op.route()["watermark"] == 1)
        op.change(edit)
        with pytest.raises(InvalidPipeline, match="while the engine runs") as raised:
            op(requests.Reload())
        text = (tmp_path / "pipeline.yaml").read_text().splitlines()
        for problem, key in zip(raised.value.problems, ('"segment_bytes"', '"spark"'), strict=True):
            assert key in text[problem.line - 1]
        op.feed("a 2")
        until(lambda: offsets(sink(tmp_path)) == [0, 1, 2])


def test_a_reload_is_audited_with_what_it_changes(tmp_path: Path) -> None:
    """A reload has one audit line, with route names and log.* values, and a refused one none."""

    def edit(document: dict[str, Any]) -> None:
        document["log"] |= {"retention": {"age": "3h"}, "segment_age": "2h"}
        document["routes"][0]["namespace"] = "^b"

    with operated(tmp_path, lines(2), out={}, other={}) as op:
        op.change(edit)
        op(requests.Reload("less to keep"))
        op.change(lambda document: document.update(name="another"))
        with pytest.raises(InvalidPipeline):
            op(requests.Reload())
    (line,) = op.audited()
    assert (line["action"], line["reason"], line["who"]) == ("reload", "less to keep", "somebody")
    assert line["routes"] == ["out", "other"]
    assert line["settings"] == {"log.retention.age": 10800.0, "log.segment_age": 7200.0}
    assert (line["file"], line["outcome"]) == (str(tmp_path / "pipeline.yaml"), "done")


def test_nothing_is_done_that_cannot_be_audited(tmp_path: Path) -> None:
    """Every action is refused and changes nothing if the audit file cannot be written."""
    with operated(tmp_path, lines(3), out={}) as op:
        until(lambda: op.route()["watermark"] == 2)
        with OffsetLog(tmp_path / "log", "old"):
            pass
        (tmp_path / "log" / AUDIT).mkdir()
        op(requests.Status())
        running, before = op.engine.pipeline, op.route()
        op.change(lambda document: document["log"].update(segment_age="2h"))
        for request in (
            requests.Pause("out"),
            requests.Replay("out", 0),
            requests.Reload(),
            requests.Forget("old"),
        ):
            with pytest.raises(EnvironmentFault, match=AUDIT):
                op(request)
        assert (op.route(), op.engine.pipeline) == (before, running)
        assert "old" in declared_routes(tmp_path / "log")
        (tmp_path / "log" / AUDIT).rmdir()


def test_settings_of_a_route_change_while_it_runs(tmp_path: Path) -> None:
    """A reloaded filter applies from the next slice on."""
    with operated(tmp_path, lines(4), out={}) as op:
        until(lambda: len(offsets(sink(tmp_path))) == 4)
        op.change(lambda document: document["routes"][0].update(namespace="^b"))
        op(requests.Reload())
        op.feed(*lines(4, 4))
        until(lambda: op.route()["watermark"] == 7)
        assert offsets(sink(tmp_path)) == [0, 1, 2, 3, 5, 7]


def test_a_route_of_an_older_pipeline_is_forgotten(tmp_path: Path) -> None:
    """A route that left the pipeline is removed while the engine runs, and pins nothing."""
    with CommitLog.open(tmp_path / "log"), OffsetLog(tmp_path / "log", "old"):
        pass
    with operated(tmp_path, lines(2), out={"start": "earliest"}) as op:
        until(lambda: op.route()["watermark"] == 1)
        assert op.engine._holds.least_hold().name == "old"
        op(requests.Forget("old"))
        assert declared_routes(tmp_path / "log") == ["out"]
        assert op.engine._holds.least_hold().name == "out"


def test_an_engine_that_stops_takes_no_actions(tmp_path: Path) -> None:
    """Every change is refused once the stop has begun, and the status is still reported."""
    with operated(tmp_path, lines(2), out={}) as op:
        until(lambda: op.route()["watermark"] == 1)
        op.engine._stop_began = time.monotonic()
        with pytest.raises(EngineUnreachable, match="stopping"):
            op(requests.Pause("out"))
        found = op(requests.Status())
        assert (found["stopping"], found["ready"]) == (True, False)
        assert "is stopping: it delivers what is logged, and ends · log" in headline(found)
    assert not read_state(tmp_path / "log", "out").paused


def test_actions_on_several_routes_at_once(tmp_path: Path) -> None:
    """Threads that pause, resume and ack two routes for a while leave both whole."""
    with operated(tmp_path, lines(50), out={"slice_rows": 1}, other={"slice_rows": 1}) as op:
        until(lambda: op.engine.log.durable == 49)

        def hammer(name: str) -> None:
            for _ in range(20):
                op(requests.Pause(name))
                op(requests.Ack(name, 0, 0))
                op(requests.Resume(name))

        threads = [threading.Thread(target=hammer, args=(name,)) for name in ("out", "other")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(lambda: [op.route(name)["lag"] for name in ("out", "other")] == [0, 0])
    for name in ("out", "other"):
        assert offsets(sink(tmp_path, name))[-49:] == list(range(1, 50))
        mine = [each for each in op.audited() if each["route"] == name]
        assert len(mine) == 60
        assert {each["outcome"] for each in mine} == {"done"}


def test_sinks_that_keep_the_newest_value_are_warned_of(tmp_path: Path) -> None:
    """A replay into a sink that upserts warns that older values overwrite newer ones."""
    lmdb = {"writer": {"adaptor": "lmdb", "path": "store"}}
    with operated(tmp_path, lines(4), out={}, keep=lmdb) as op:
        until(lambda: [op.route(name)["watermark"] for name in ("out", "keep")] == [3, 3])
        assert op(requests.Replay("out", first=0, last=1, dry_run=True))["warning"] is None
        part = op(requests.Replay("keep", first=0, last=1, dry_run=True))["warning"]
        assert "older values overwrite newer ones, and stay until 2..3" in part
        whole = op(requests.Replay("keep", first=0, dry_run=True))["warning"]
        assert "until the replay has ended" in whole


def test_readiness_is_that_of_the_endpoint(tmp_path: Path) -> None:
    """The reasons are those of /readyz, by the time that the file sets."""
    with operated(tmp_path, lines(2), out={"on_error": "stop", "writer": {"reject": [1]}}) as op:
        until(lambda: op.route()["state"] == "stopped")
        found = op(requests.Readiness())
        patience = op.engine.pipeline.observe.unready_after
        expected = readiness_report(op.engine.status(), patience)
        assert [each["name"] for each in found["reasons"]] == ["out"]
        assert (found["ready"], found["reasons"][0]["why"]) == (
            False,
            expected["reasons"][0]["why"],
        )
        op(requests.Pause("out"))
        op(requests.Ack("out", 1, 1))
        until(lambda: op(requests.Readiness())["ready"])
        assert op(requests.Readiness())["paused"] == ["out"]
