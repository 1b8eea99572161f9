"""Lines of running routes about skipped entries and delivered parked ones."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import Events, make_pipeline, offsets, running, until
from live_tools import ME, lines, operated, sink

from transporter.cli import app
from transporter.control import requests
from transporter.control.stopped_log import StoppedLog, rename_progress
from transporter.errors import Corrupt
from transporter.log.filesystem import RealFileSystem
from transporter.offsets.given_up import NEWEST, RESERVE, read_given_up
from transporter.offsets.offset_log import OffsetLog, read_state, route_folder

if TYPE_CHECKING:
    from pathlib import Path

SKIPPING = {
    "on_error": "skip",
    "retry": {"attempts": 2, "backoff": "1ms..2ms"},
    "writer": {"reject": [1, 3]},
}
PARKING = {**SKIPPING, "on_error": "park"}


def given_up(folder: Path, route: str = "out") -> list[dict[str, Any]]:
    """Return the lines of a route."""
    return list(read_given_up(route_folder(folder / "log", route)))


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Let the disk be full for the lines, until the only item of the list is false."""
    full = [True]

    class Disk(RealFileSystem):
        def open(self, path: Path, *, write: bool = False, create: bool = False) -> Any:
            if write and full[0]:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().open(path, write=write, create=create)

    monkeypatch.setattr("transporter.offsets.given_up.RealFileSystem", Disk)
    return full


def test_a_skipped_entry_has_a_line(tmp_path: Path) -> None:
    """The line names the offset, the attempts and the error, and outlives the engine."""
    with operated(tmp_path, lines(5), out=SKIPPING) as op:
        until(lambda: op.route()["watermark"] == 4)
        found = given_up(tmp_path)
        assert [(each["event"], each["offset"], each["attempts"]) for each in found] == [
            ("entry-skipped", 1, 2),
            ("entry-skipped", 3, 2),
        ]
        assert found[0]["error"] == "no 1 here"
        assert found[0]["generation"] == 0
        op(requests.Replay("out", first=0, last=4))
        until(lambda: op.route()["replay"] is None and op.route()["generation"] == 1)
    (ended,) = op.events.named("replay-ended")
    assert (ended["route"], ended["first"], ended["last"]) == ("out", 0, 4)
    assert [(each["offset"], each["generation"]) for each in given_up(tmp_path)] == [
        *((1, 0), (3, 0)),
        *((1, 1), (3, 1)),
    ]


def test_a_line_is_there_before_the_watermark_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between the two repeats a line, and never loses one (Invariant 5)."""
    passed: list[tuple[int, list[int]]] = []
    settle = OffsetLog.settle

    def noted(log: OffsetLog, part: Any, *rest: Any) -> Any:
        if part.kind == "skipped":
            passed.append((part.first, [each["offset"] for each in given_up(tmp_path)]))
        return settle(log, part, *rest)

    monkeypatch.setattr(OffsetLog, "settle", noted)
    with operated(tmp_path, lines(5), out=SKIPPING) as op:
        until(lambda: op.route()["watermark"] == 4)
    assert passed == [(1, [1]), (3, [1, 3])]


def test_a_parked_entry_that_is_delivered_has_a_line(tmp_path: Path) -> None:
    """The line says why and when the entry was parked, which its copy no longer can."""
    with operated(tmp_path, lines(5), out=PARKING) as op:
        until(lambda: op.route()["parked"] == 2)
        op.change(lambda document: document["routes"][0]["writer"].update(reject=[3]))
        op(requests.Reload())
        op(requests.RetryParked("out"))
        op.events.await_count("parked-failed")
        until(lambda: op.route()["parked"] == 1)
        (line,) = given_up(tmp_path)
    assert (line["event"], line["offset"], line["attempts"], line["error"]) == (
        "parked-delivered",
        1,
        2,
        "no 1 here",
    )
    assert 0 < line["at"] - line["parked_at"] < 300


def test_a_full_disk_keeps_no_route_from_skipping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines without room are reported once and written later; delivery goes on (Invariant 14)."""
    full = fill_disk(monkeypatch)
    with operated(tmp_path, lines(6), out=SKIPPING) as op:
        until(lambda: op.route()["watermark"] == 5)
        assert offsets(sink(tmp_path)) == [0, 2, 4, 5]
        assert given_up(tmp_path) == []
        (warned,) = op.events.named("given-up-unwritten")
        assert warned["route"] == "out"
        full[0] = False
        op.feed(*lines(1, 6))
        until(lambda: [each["offset"] for each in given_up(tmp_path)] == [1, 3])


def test_lines_that_wait_are_written_at_a_clean_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop writes what waits if there is room by then, and does not fail if there is none."""
    full = fill_disk(monkeypatch)
    monkeypatch.setattr("transporter.offsets.given_up._AGAIN", 3_600.0)
    for freed in (False, True):
        folder = tmp_path / str(freed)
        folder.mkdir()
        full[0] = True
        with running(
            make_pipeline(folder, lines(5), end=False, out=SKIPPING), events=Events()
        ) as engine:
            until(lambda engine=engine: engine.status().routes[0].lag == 0)
            full[0] = not freed
        assert [each["offset"] for each in given_up(folder)] == ([1, 3] if freed else [])


def test_only_a_route_that_may_skip_reserves_room(tmp_path: Path) -> None:
    """Other routes get their file with their first line."""
    with operated(tmp_path, lines(1), out={"on_error": "skip"}, other={"on_error": "park"}) as op:
        until(lambda: op.route()["watermark"] == 0)
        folder = route_folder(tmp_path / "log", "out")
        assert (folder / NEWEST).stat().st_size == RESERVE
        assert not (route_folder(tmp_path / "log", "other") / NEWEST).exists()
        op.change(lambda document: document["routes"][1].update(on_error="skip"))
        op(requests.Reload())
        until((route_folder(tmp_path / "log", "other") / NEWEST).exists)
    assert given_up(tmp_path) == []


def test_lines_follow_a_renamed_route_and_go_with_a_forgotten_one(tmp_path: Path) -> None:
    """A rename keeps the lines. Forgetting removes them, and leaves a line in the audit file."""
    with operated(tmp_path, lines(5), out=SKIPPING) as op:
        until(lambda: op.route()["watermark"] == 4)
    log = tmp_path / "log"
    rename_progress(log, "out", "events", ME, "")
    assert [each["offset"] for each in given_up(tmp_path, "events")] == [1, 3]
    StoppedLog(log).perform(requests.Forget("events", "gone"), ME)
    assert not route_folder(log, "events").exists()
    assert [each["action"] for each in op.audited()] == ["offsets rename", "route forget"]


def test_the_command_shows_the_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest lines are a table or JSON, and an unknown route is an error of usage."""
    with operated(tmp_path, lines(5), out=SKIPPING, other={}) as op:
        until(lambda: op.route()["watermark"] == op.route("other")["watermark"] == 4)
    log = str(tmp_path / "log")
    assert app.execute(["offsets", "given-up", log, "out", "--last", "1"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["AT", "EVENT", "OFFSET", "ATTEMPTS", "ERROR"]
    assert row.split()[1:] == ["entry-skipped", "3", "2", "no", "3", "here"]
    assert app.execute(["offsets", "given-up", log, "out", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["result"]
    assert [each["offset"] for each in found] == [1, 3]
    assert app.execute(["offsets", "given-up", log, "other"]) == 0
    assert "has skipped no entry" in capsys.readouterr().err
    assert app.execute(["offsets", "given-up", log, "none"]) == 2


def test_a_damaged_copy_does_not_stop_what_was_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parked copy that cannot be read any more still has its line, without the reason."""

    def damaged(*_: object) -> None:
        raise Corrupt("damaged", "f", 0)

    monkeypatch.setattr("transporter.engine.routing.parking.Parking.reason_of", damaged)
    with operated(tmp_path, lines(2), out={**PARKING, "writer": {"reject": [1]}}) as op:
        until(lambda: op.route()["parked"] == 1)
        op.change(lambda document: document["routes"][0]["writer"].update(reject=[]))
        op(requests.Reload())
        op(requests.RetryParked("out"))
        until(lambda: op.route()["parked"] == 0)
        (line,) = given_up(tmp_path)
    assert (line["event"], line["offset"], line["error"]) == ("parked-delivered", 1, "")
    assert read_state(tmp_path / "log", "out").watermark == 1


@pytest.mark.parametrize("act", [requests.CancelReplay("out"), requests.Ack("out", 0, 4)])
def test_each_replay_that_was_delivered_has_one_end(tmp_path: Path, act: requests.Request) -> None:
    """An operator's act that ends one is no delivery, and a short one is not missed."""
    with operated(tmp_path, lines(5), out={}) as op:
        until(lambda: op.route()["watermark"] == 4)
        op(requests.Pause("out"))
        op(requests.Replay("out", first=0, last=4))
        op(act)
        op(requests.Resume("out"))
        for turn in range(1, 11):
            op(requests.Replay("out", first=0, last=4))
            until(lambda: op.route()["replay"] is None)
            until(lambda turn=turn: len(op.events.named("replay-ended")) == turn)
