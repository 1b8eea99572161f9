"""Commands that look at a running engine, and bulk acts, as an operator runs them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from acceptance_tools import await_true
from operator_tools import command, done, feed, operated, route, write_file

from transporter.audit import AUDIT

if TYPE_CHECKING:
    from pathlib import Path


def parked(path: Path) -> int:
    """Return the number of parked entries of the first route."""
    return int(done("status", str(path))["routes"][0]["parked"])


def series(path: Path) -> list[str]:
    """Return the routes of which the engine has a history."""
    found = json.loads(command("history", str(path), "--route", "out", "--json").stdout)
    return [each["name"] for each in found["result"]["series"]] if found["ok"] else []


@pytest.mark.exhaustive
def test_an_incident_is_seen_and_mended_from_the_command_line(tmp_path: Path) -> None:
    """Events, status, a note, a dry run, a list of retries, what became of it, and a history."""
    parking = route(on_error="park", writer={"reject": [1, 3, 4]}, retry={"attempts": 1})
    path = write_file(tmp_path, [parking, route("other")])
    with operated(path) as engine:
        feed(tmp_path, *(f"orders {number}" for number in range(6)))
        await_true(lambda: parked(path) == 3, 120, "three are parked")
        found = done("events", str(path), "--level", "warning", "--route", "out")
        assert [each["offset"] for each in found["events"]] == [1, 3, 4]
        state = done("status", str(path))
        assert (state["ready"], state["dead"], state["routes"][0]["still"]) == (True, [], 0.0)
        done("parked", "note", str(path), "out", "3", "waits for ACME")
        mended = route(on_error="park", writer={"reject": [3]}, retry={"attempts": 1})
        write_file(tmp_path, [mended, route("other")])
        before = (tmp_path / "log" / AUDIT).read_bytes()
        preview = done("reload", str(path), "--dry-run")
        assert (preview["routes"], preview["refusals"]) == (["out", "other"], [])
        assert (tmp_path / "log" / AUDIT).read_bytes() == before
        done("reload", str(path))
        told = done("parked", "retry", str(path), "out", "1", "3..4", "9")
        assert (told["offsets"], told["missing"]) == ([1, 3, 4], [[9, 9]])
        await_true(lambda: parked(path) == 1, 120, "two are delivered")
        lines = done("offsets", "given-up", str(path), "out")
        assert [(each["event"], each["offset"]) for each in lines] == [
            ("parked-delivered", 1),
            ("parked-delivered", 4),
        ]
        (left,) = done("parked", "list", str(path), "out")
        assert (left["offset"], left["note"]["text"]) == (3, "waits for ACME")
        await_true(lambda: series(path) == ["out"], 120, "a point was taken")
        assert engine.process.poll() is None
