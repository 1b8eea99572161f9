"""Retry, skip and note of parked entries by lists, on a running engine and on a log without one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import offsets, until
from live_tools import ME, Operated, lines, operated, sink

from transporter.audit import AUDIT
from transporter.cli import app
from transporter.control import requests
from transporter.control.stopped_log import StoppedLog
from transporter.errors import ActionRefused, OffsetRefused
from transporter.log.filesystem import RealFileSystem
from transporter.offsets.offset_log import route_folder
from transporter.offsets.parked import parked_offsets, parked_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PARKING = {
    "on_error": "park",
    "retry": {"attempts": 1, "backoff": "1ms..2ms"},
    "writer": {"reject": [1, 3, 5, 7]},
}


@pytest.fixture
def op(tmp_path: Path) -> Iterator[Operated]:
    """Run a route that has parked the offsets 1, 3, 5 and 7 of ten."""
    with operated(tmp_path, lines(10), out=PARKING) as made:
        until(lambda: made.route()["parked"] == 4 and made.route()["watermark"] == 9)
        yield made


def mend(op: Operated) -> None:
    """Let the sink take everything from now on."""
    op.change(lambda document: document["routes"][0]["writer"].update(reject=[]))
    op(requests.Reload())


def test_a_list_is_retried_and_the_rest_is_named(op: Operated, tmp_path: Path) -> None:
    """Only the named entries are delivered, and the answer has those that were not parked."""
    mend(op)
    told = op(requests.RetryParked("out", offsets=((3, 3), (6, 9), (20, 21))))
    assert told["offsets"] == [3, 7]
    assert told["missing"] == [[6, 6], [8, 9], [20, 21]]
    assert told["refused"] == []
    assert "2 parked entries will be delivered; nothing is parked at 20..21" in told["done"]
    until(lambda: op.route()["parked"] == 2)
    assert sorted(offsets(sink(tmp_path))) == [0, 2, 3, 4, 6, 7, 8, 9]
    assert op.audited()[-1]["offsets"] == [3, 7]


def test_the_command_tells_what_has_become_of_retries(
    op: Operated,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which were delivered, which have failed again, and which nobody has tried yet."""
    monkeypatch.setattr(
        "transporter.cli.parked.perform_request", lambda _, request: {"live": True} | op(request)
    )
    words = ["parked", "retry", str(tmp_path / "log"), "out"]
    assert app.execute([*words, "3", "7"]) == 0
    said = capsys.readouterr().out.splitlines()
    again = "(offsets 3, 7: 'transporter parked show' has the error)"
    assert said[1] == f"outcome: 0 delivered, 2 parked again {again}"
    op(requests.Pause("out"))
    assert app.execute([*words, "1", "--wait", "50ms"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1].endswith("1 not tried within 50ms; look at 'transporter status'")
    op(requests.Resume("out"))
    mend(op)
    assert app.execute([*words, "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)["result"]["outcome"]
    assert outcome["pending"] == outcome["parked"] == []
    assert {3, 5, 7} <= {*outcome["delivered"]}
    assert app.execute([*words, "--wait", "soon"]) == 2


def test_an_ack_of_what_is_settled_says_so(op: Operated) -> None:
    """A parked entry is settled, and stays parked; a range with something new is acked."""
    told = op(requests.Ack("out", 3, 3))
    assert told["done"] == (
        "3 was settled already; offset 3 stays parked, see 'transporter parked skip'"
    )
    assert op(requests.Ack("out", 2, 2))["done"] == "2 was settled already"
    assert op.route()["parked"] == 4
    op(requests.Pause("out"))
    op.feed(*lines(3, 10))
    until(lambda: op.engine.log.durable == 12)
    done = op(requests.Ack("out", 7, 11))["done"]
    assert done == "acked 7..11; offset 7 stays parked, see 'transporter parked skip'"
    assert op(requests.Ack("out", 11, 11))["done"] == "11 was settled already"


def test_a_list_is_skipped(op: Operated, tmp_path: Path) -> None:
    """Skipped entries are gone for good, the others stay parked."""
    told = op(requests.SkipParked("out", offsets=((1, 1), (5, 5)), reason="tests"))
    assert (told["offsets"], told["missing"]) == ([1, 5], [])
    assert op.route()["parked"] == 2
    with pytest.raises(OffsetRefused, match=r"nothing is parked at 1, 5"):
        op(requests.SkipParked("out", offsets=((1, 1), (5, 5))))
    with pytest.raises(ActionRefused, match="is not an offset range"):
        op(requests.SkipParked("out"))
    assert len(op.audited()) == 1
    assert op.route()["parked"] == 2


def test_the_second_of_two_operators_learns_what_the_first_has_done(
    op: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that another request removes meanwhile is missing from a skip, not skipped."""
    from transporter.control import operator_actions  # noqa: PLC0415 - patched below

    original = operator_actions.skip_entries

    def after_another(store: Any, log: Any, chosen: list[int], *, only: bool) -> list[int]:
        original(store, log, [3], only=only)
        return original(store, log, chosen, only=only)

    monkeypatch.setattr(operator_actions, "skip_entries", after_another)
    told = op(requests.SkipParked("out", offsets=((1, 4),)))
    assert (told["offsets"], told["missing"]) == ([1], [[2, 2], [3, 3], [4, 4]])


def test_a_damaged_entry_is_refused_by_a_retry_and_skipped_by_a_skip(tmp_path: Path) -> None:
    """A retry of what cannot be read is refused with the reason, and the others are retried."""
    with operated(tmp_path, lines(10), out=PARKING) as op:
        until(lambda: op.route()["parked"] == 4)
    log = tmp_path / "log"
    parked_path(route_folder(log, "out"), 3).write_bytes(b"nonsense")
    stopped = StoppedLog(log)
    told = stopped.perform(requests.RetryParked("out", offsets=((1, 3),)), ME)
    assert told["offsets"] == [1]
    (refused,) = told["refused"]
    assert (refused["first"], refused["last"]) == (3, 3)
    with pytest.raises(ActionRefused, match="the parked entry 3: its file cannot be read; skip"):
        stopped.perform(requests.RetryParked("out", 3, 3), ME)
    assert stopped.perform(requests.SkipParked("out", 3, 3), ME)["offsets"] == [3]
    assert parked_offsets(route_folder(log, "out"), RealFileSystem()) == [1, 5, 7]


def test_a_note_changes_nothing_else(op: Operated, tmp_path: Path) -> None:
    """A note is a line of the audit file and revives no halted route; parked entries stay."""
    before = op.route()
    told = op(requests.NoteParked("out", 3, "waits for ACME, ticket 12"))
    assert told["done"] == "the note about offset 3 is recorded"
    (line,) = op.audited()
    assert (line["action"], line["offset"], line["note"], line["outcome"]) == (
        "parked note",
        3,
        "waits for ACME, ticket 12",
        "done",
    )
    assert op.route()["parked"] == before["parked"]
    with pytest.raises(OffsetRefused, match="nothing is parked at 2"):
        op(requests.NoteParked("out", 2, "x"))
    with pytest.raises(ActionRefused, match="one line"):
        op(requests.NoteParked("out", 3, "x\ny"))
    assert len(op.audited()) == 1


def test_a_halted_route_is_not_revived_by_a_note(tmp_path: Path) -> None:
    """A note about a parked entry does not make a halted route try again."""
    writer = {"reject": [1, 2]}
    limit = {"entries": 1, "bytes": "1MiB"}
    keys = {**PARKING, "writer": writer, "park_limit": limit}
    with operated(tmp_path, lines(4), out=keys) as op:
        op.events.await_count("route-stopped")
        op(requests.NoteParked("out", 1, "x"))
        assert op.route()["state"] == "stopped"
        assert len(op.events.named("route-stopped")) == 1


def test_the_commands_take_lists_and_show_notes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Several offsets and ranges are one request, and list and show have the newest note."""
    with operated(tmp_path, lines(10), out=PARKING) as op:
        until(lambda: op.route()["parked"] == 4)
    log = str(tmp_path / "log")

    def said(*arguments: str) -> str:
        assert app.execute(["parked", *arguments]) == 0
        return capsys.readouterr().out

    said("note", log, "out", "5", "first")
    assert "recorded" in said("note", log, "out", "5", "ask \N{SNOWMAN}")
    assert "note: ask \N{SNOWMAN} (" in said("list", log, "out")
    assert "note            ask \N{SNOWMAN} (" in said("show", log, "out", "5")
    shown = json.loads(said("list", log, "out", "--json"))["result"]
    assert [each["note"] and each["note"]["text"] for each in shown] == [
        *(None, None),
        "ask \N{SNOWMAN}",
        None,
    ]
    assert "removed" in said("note", log, "out", "5", "")
    assert "note" not in said("show", log, "out", "5")
    told = json.loads(said("retry", log, "out", "1", "5..6", "7", "--json"))["result"]
    assert (told["offsets"], told["missing"]) == ([1, 5, 7], [[6, 6]])
    assert "2 parked entries skipped" in said("skip", log, "out", "3", "7", "--reason", "tests")
    assert app.execute(["parked", "retry", log, "out", "5", "x"]) == 2
    assert "'x' is not an offset range" in capsys.readouterr().err
    assert (tmp_path / "log" / AUDIT).exists()
