"""Readers and routes that are added and removed while the engine runs, as by a reload."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import delivered, offsets, until
from live_tools import GOING_ON, ME, lines, operated, operated_table, reader, reload, route, sink
from table_tools import table, told

from transporter.audit import AUDIT
from transporter.cli.status import status_rows
from transporter.control import requests
from transporter.engine.events import State
from transporter.errors import ActionRefused, EngineUnreachable, EnvironmentFault
from transporter.log.commit_log import CommitLog
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import OffsetLog, declared_routes, read_state
from transporter.offsets.retention_holds import Hold
from transporter.offsets.state import Range
from transporter.pipeline.problems import InvalidPipeline

if TYPE_CHECKING:
    from pathlib import Path


def test_a_route_comes_goes_and_comes_back(tmp_path: Path) -> None:
    """A route starts where its start is, resumes at its position, and affects no other route."""
    with operated(tmp_path, lines(3), out={}) as op:
        until(lambda: op.route()["watermark"] == 2)
        both = [route("late", start="earliest"), route("out")]
        answer = reload(op, routes=both)
        assert answer["added"] == {"readers": [], "routes": ["late"]}
        until(lambda: offsets(sink(tmp_path, "late")) == [0, 1, 2])
        assert op.events.named("route-begins")[-1] == {"route": "late", "offset": 0}
        assert [each["name"] for each in op(requests.Status())["routes"]] == ["late", "out"]

        assert reload(op, routes=[route("out")])["removed"] == {"readers": [], "routes": ["late"]}
        op.events.await_count("offset-log-unused")
        assert [each["name"] for each in op(requests.Status())["routes"]] == ["out"]
        with pytest.raises(ActionRefused, match=r"no route 'late'.*\(out\)"):
            op(requests.Pause("late"))
        op.feed(*lines(3, 3))
        until(lambda: op.route()["watermark"] == 5)
        assert op.engine._holds.least_hold() == Hold(2, "late")

        reload(op, routes=both)
        until(lambda: offsets(sink(tmp_path, "late")) == [0, 1, 2, 3, 4, 5])
    assert offsets(sink(tmp_path)) == [0, 1, 2, 3, 4, 5]
    assert read_state(tmp_path / "log", "late").watermark == 5


def test_what_holds_the_log_is_what_a_route_has_left_and_not_what_it_had(tmp_path: Path) -> None:
    """A route's hold is its remaining work, with no old hold in between (Invariant 11)."""
    with CommitLog.open(tmp_path / "log"), OffsetLog(tmp_path / "log", "old"):
        pass
    with operated(tmp_path, lines(4), out={"start": "earliest"}) as op:
        until(lambda: op.route()["watermark"] == 3)
        for _ in range(3):
            hold = op.engine._holds.least_hold()
            assert hold.name == "old"
            reload(op, routes=[route("out"), route("old")])
            until(lambda: op.route("old")["lag"] == 0)
            reload(op, routes=[route("out")])
            until(lambda: "old" in {each["route"] for each in op.events.named("offset-log-unused")})
            last = op.engine.log.durable
            assert op.engine._holds.least_hold().through == last
            op.feed("a more")
            until(lambda: op.route()["watermark"] == op.engine.log.durable > last)  # noqa: B023
            assert op.engine._holds.least_hold() == Hold(last, "old")
        op(requests.Forget("old"))
        assert op.engine._holds.least_hold().name == "out"
    assert offsets(sink(tmp_path, "old")) == [0, 1, 2, 3, 4, 5]


def test_a_route_that_was_forgotten_and_comes_anew_begins_anew(tmp_path: Path) -> None:
    """A route that was forgotten and is added again starts without its earlier offset log."""
    with CommitLog.open(tmp_path / "log") as log, OffsetLog(tmp_path / "log", "old") as old:
        first, last = log.append(messages_to_batch([Message("a", b"x")] * 3), "before")
        old.settle(Range(first, last), last)
    with operated(tmp_path, lines(1), out={"start": "earliest"}) as op:
        op(requests.Forget("old"))
        reload(op, routes=[route("out"), route("old", start="earliest")])
        until(lambda: offsets(sink(tmp_path, "old")) == [0, 1, 2, 3])
        reload(op, routes=[route("out")])
        op.events.await_count("offset-log-unused", 2)
        op.feed("a 4")
        until(lambda: op.route()["watermark"] == 4)
        assert op.engine._holds.least_hold() == Hold(3, "old")


def test_a_route_is_not_declared_while_entries_are_given_up(tmp_path: Path) -> None:
    """A new route is declared only after a running release has ended (Invariant 11)."""
    with operated(tmp_path, lines(3), out={}) as op:
        until(lambda: op.route()["watermark"] == 2)
        with op.engine.log.gate:
            adding = threading.Thread(
                target=reload, args=(op,), kwargs={"routes": [route("out"), route("late")]}
            )
            adding.start()
            time.sleep(0.2)
            assert declared_routes(tmp_path / "log") == ["out"]
        adding.join()
        until(lambda: op.route("late")["lag"] == 0)


def test_a_route_that_leaves_ends_behind_its_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leaving route settles its writer's slice, and cannot be added again until then."""
    writer = {"pause_at": 1}
    paused = tmp_path / "slow.paused"
    paused.touch()
    with operated(tmp_path, lines(3), out={}, slow={"writer": writer}) as op:
        until((tmp_path / "slow.waiting").exists)
        with monkeypatch.context() as patch:
            patch.setattr("transporter.control.running_engine.NOTICE", 0.1)
            assert reload(op, routes=[route("out")])["leaving"] == ["route slow"]
        assert op.route("slow")["watermark"] == op.route("slow")["next"] - 1
        assert [row[0] for row in status_rows(op(requests.Status()))][1:] == [
            "route out",
            "route slow",
        ]
        with pytest.raises(ActionRefused, match="route slow was removed and has not ended yet"):
            reload(op, routes=[route("out"), route("slow")])
        paused.unlink()
        op.events.await_count("offset-log-unused")
        assert read_state(tmp_path / "log", "slow").watermark == 2
        op.feed("a 3")
        until(lambda: op.route()["watermark"] == 3)
    assert offsets(sink(tmp_path, "slow")) == [0, 1, 2]


@pytest.mark.parametrize("state", ["halted", "paused"])
def test_a_route_that_waits_for_somebody_leaves_at_once(tmp_path: Path, state: str) -> None:
    """A paused or halted route leaves at once, and is in the same state when it is back."""
    keys = {"writer": {"reject": [1]}} if state == "halted" else {}
    with operated(tmp_path, lines(2), out={}, late=keys) as op:
        until(lambda: op.route("out")["watermark"] == 1)
        if state == "paused":
            op(requests.Pause("late"))
        else:
            op.events.await_count("route-stopped")
        assert reload(op, routes=[route("out")])["leaving"] == []
        assert op.engine.halted == []
        reload(op, routes=[route("out"), route("late", **keys)])
        until(lambda: op.route("late")["state"] == {"halted": "stopped"}.get(state, state))


def test_a_stop_takes_those_with_it_that_are_leaving(tmp_path: Path) -> None:
    """A stop ends leaving routes as usual, and a later reload finds no engine."""
    paused = tmp_path / "slow.paused"
    paused.touch()
    with operated(tmp_path, lines(3), out={}, slow={"writer": {"pause_at": 1}}) as op:
        until((tmp_path / "slow.waiting").exists)
        op.engine.reconfigure(
            op.engine.pipeline.model_copy(update={"routes": op.engine.pipeline.routes[:1]})
        )
        threading.Timer(0.2, paused.unlink).start()
        op.engine.stop()
        with pytest.raises(EngineUnreachable, match="is stopping"):
            op.engine.reconfigure(op.engine.pipeline)
    assert read_state(tmp_path / "log", "slow").watermark == 2


def test_a_renamed_route_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    """A renamed route is refused at a reload, and nothing changes."""
    with operated(tmp_path, lines(2), out={}, old={}) as op:
        until(lambda: op.route("old")["watermark"] == 1)
        with pytest.raises(InvalidPipeline, match="offsets rename"):
            reload(op, routes=[route("out"), route("new")], commit_interval="3s")
        assert op.route("old")["state"] == "running"
        assert declared_routes(tmp_path / "log") == ["old", "out"]
        assert op.engine.pipeline.commit_interval == 0.05
        assert not (tmp_path / "log" / AUDIT).exists()


def test_when_a_route_cannot_be_declared_none_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails at a reload leaves no new offset log, which would hold the log."""

    def full(directory: Path, name: str, **more: Any) -> OffsetLog:
        if name == "second":
            (directory / "offsets" / name).mkdir()
            raise EnvironmentFault("the disk is full")
        return OffsetLog(directory, name, **more)

    with operated(tmp_path, lines(2), out={}) as op:
        until(lambda: op.route()["watermark"] == 1)
        wanted = [route("out"), route("first", start="latest"), route("second", start="latest")]
        with monkeypatch.context() as patch:
            patch.setattr("transporter.engine.reload.OffsetLog", full)
            with pytest.raises(EnvironmentFault, match="the disk is full"):
                reload(op, routes=wanted)
        assert declared_routes(tmp_path / "log") == ["out"]
        op.feed("a 2")
        until(lambda: op.route()["watermark"] == 2)
        reload(op, routes=wanted)
        op.feed("a 3")
        until(lambda: offsets(sink(tmp_path, "second")) == [3])
        until(lambda: offsets(sink(tmp_path, "first")) == [3])


def test_a_reader_comes_goes_and_comes_back(tmp_path: Path) -> None:
    """A reader resumes at its position, and the other readers are read all the time."""
    (tmp_path / "more.txt").write_text("b x\nb y\n")
    first, more = reader("in", "source.txt"), reader("more", "more.txt")
    with operated(tmp_path, lines(1), out={}) as op:
        until(lambda: op.route()["watermark"] == 0)
        assert reload(op, readers=[more, first])["added"]["readers"] == ["more"]
        until(lambda: op.route()["watermark"] == 2)
        assert [each["name"] for each in op(requests.Status())["readers"]] == ["more", "in"]
        assert reload(op, readers=[first])["leaving"] == []
        (tmp_path / "more.txt").write_text("b x\nb y\nb z\n")
        op.feed("a 1")
        until(lambda: op.route()["watermark"] == 3)
        assert op.engine.feed("more") is None
        reload(op, readers=[first, more])
        until(lambda: op.route()["watermark"] == 4)
    data = [each["data"] for each in delivered(sink(tmp_path))]
    assert data == ["0", "x", "y", "1", "z"]


def test_a_reader_with_other_settings_is_opened_anew(tmp_path: Path) -> None:
    """A reader with other settings is opened again, a paused one at its resume."""
    (tmp_path / "else.txt").write_text("b x\nb y\nb z\n")
    elsewhere = [reader("in", "else.txt")]
    with operated(tmp_path, lines(1), out={}) as op:
        until(lambda: op.route()["watermark"] == 0)
        (tmp_path / "source.txt").unlink()
        op.events.await_count("reader-stopped")
        answer = reload(op, readers=elsewhere)
        assert (answer["readers"], answer["problems"]) == (["in"], {})
        until(lambda: op.route()["watermark"] == 2)
        op(requests.PauseReader("in"))
        (tmp_path / "third.txt").write_text("c 1\nc 2\nc 3\nc 4\n")
        reload(op, readers=[reader("in", "third.txt")])
        assert op(requests.Status())["readers"][0]["state"] == "paused"
        op(requests.ResumeReader("in"))
        until(lambda: op.route()["watermark"] == 3)
    data = [each["data"] for each in delivered(sink(tmp_path))]
    assert data == ["0", "y", "z", "4"]


@pytest.mark.parametrize("adaptor", ["engine_tools:LinesReader", GOING_ON])
def test_a_new_reader_that_cannot_be_opened_stops_alone(tmp_path: Path, adaptor: str) -> None:
    """A new reader that cannot be opened stops alone, and the operator gets the reason."""
    first = reader("in", "source.txt")
    with operated(tmp_path, lines(1), out={}) as op:
        until(lambda: op.route()["watermark"] == 0)
        answer = reload(op, readers=[first, reader("bad", "none/table.txt", adaptor=adaptor)])
        assert "none/table" in answer["problems"]["bad"]
        assert op.engine.halted == ["bad"]
        op.feed("a 1")
        until(lambda: op.route()["watermark"] == 1)
        assert reload(op, readers=[first])["leaving"] == []
        assert op.engine.halted == []


def test_a_reader_that_leaves_tells_its_source_what_is_delivered(tmp_path: Path) -> None:
    """A leaving reader acknowledges delivered entries to its source, and nothing later."""
    keys = {"adaptor": "table_tools:Committed", "release": "delivered", "rows": 1}
    waiting, first = reader("waiting", "w.txt", **keys), reader("in", "source.txt")
    (tmp_path / "w.txt").write_text("n a\nn b\n")
    with operated(tmp_path, [], out={"writer": {"pause_at": 1}, "slice_rows": 1}) as op:
        (tmp_path / "out.paused").touch()
        reload(op, readers=[first, waiting])
        until(lambda: op.engine.log.durable == 1)
        until(lambda: told(tmp_path / "w.txt") == [1])
        reload(op, readers=[first])
        (tmp_path / "out.paused").unlink()
        until(lambda: op.route()["watermark"] == 1)
        assert told(tmp_path / "w.txt") == [1]
        (tmp_path / "w.txt").write_text("n a\nn b\nn c\n")
        reload(op, readers=[first, waiting])
        until(lambda: told(tmp_path / "w.txt") == [1, 3])
    assert offsets(sink(tmp_path)) == [0, 1, 2]


def test_a_leader_that_leaves_leaves_what_is_not_delivered_to_the_next(tmp_path: Path) -> None:
    """A leaving leader leaves undelivered entries to the next leader (Invariant 10)."""
    (tmp_path / "out.down").write_text("write")
    (tmp_path / "source.txt").write_text("")
    given = table(
        tmp_path, [f"k{n} {n}" for n in range(5)], {"name": "out"}, adaptor=GOING_ON, end=False
    )
    with operated_table(given) as op:
        until(lambda: op.engine.log.durable == 4)
        shared = {"name": "in", "adaptor": GOING_ON, "path": "table.txt", "end": False}
        other = reader("other", "source.txt")
        assert reload(op, readers=[other])["leaving"] == []
        until(lambda: op.route()["lag"] == 0)
        (tmp_path / "out.down").unlink()
        op.feed("a 1")
        until(lambda: offsets(sink(tmp_path)) == [5])
        assert told(tmp_path / "table.txt") == []
        reload(op, readers=[other, shared])
        until(lambda: sorted(told(tmp_path / "table.txt")) == [0, 1, 2, 3, 4])
    assert offsets(sink(tmp_path)) == [5, 6, 7, 8, 9, 10]


def test_a_source_waits_for_a_route_that_has_come(tmp_path: Path) -> None:
    """A new route delivers the log's entries, and no source is acknowledged before that."""
    given = table(tmp_path, ["k 0", "k 1"], {"name": "out"}, adaptor=GOING_ON, end=False)
    with operated_table(given) as op:
        until(lambda: told(tmp_path / "table.txt") == [0, 1])
        (tmp_path / "late.down").write_text("write")
        reload(op, routes=[route("out"), route("late", start="earliest")])
        with (tmp_path / "table.txt").open("a") as file:
            file.write("k 2\n")
        until(lambda: op.route()["watermark"] == 2)
        assert 2 not in told(tmp_path / "table.txt")
        (tmp_path / "late.down").unlink()
        until(lambda: 2 in told(tmp_path / "table.txt"))
        assert offsets(sink(tmp_path, "late")) == [0, 1, 2]


def test_a_route_that_a_source_waits_for_cannot_be_taken_away(tmp_path: Path) -> None:
    """A route that a source waits for can only be removed together with its reader."""
    given = table(tmp_path, ["k 0"], {"name": "out"}, {"name": "old"}, adaptor=GOING_ON, end=False)
    (tmp_path / "source.txt").write_text("")
    with operated_table(given) as op:
        until(lambda: told(tmp_path / "table.txt") == [0])
        with pytest.raises(InvalidPipeline, match="route old has an offset log"):
            reload(op, routes=[route("out")])
        assert op.route("old")["state"] == State.RUNNING.value
        answer = reload(op, routes=[route("out")], readers=[reader("in2", "source.txt")])
        assert answer["leaving"] == []
        assert answer["removed"] == {"readers": ["in"], "routes": ["old"]}


def test_who_comes_and_goes_is_in_the_audit_file(tmp_path: Path) -> None:
    """Additions and removals are in the audit file by kind, name and operator."""
    with operated(tmp_path, [], out={}, old={}) as op:
        reload(op, routes=[route("out"), route("new", start="latest")])
        (line,) = op.audited()
        assert line["who"] == ME.who
        assert line["added"] == {"readers": [], "routes": ["new"]}
        assert line["removed"] == {"readers": [], "routes": ["old"]}
        said = op.events.named("pipeline-reloaded")[-1]
        assert (said["added"], said["removed"]) == ("route new", "route old")
