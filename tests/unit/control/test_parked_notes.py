"""Notes about parked entries: the newest counts, and they follow their route."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from transporter.audit import AUDIT, AuditFile, OnBehalfOf, Operator
from transporter.control.parked_notes import LONGEST, check_note, read_notes
from transporter.errors import ActionRefused

if TYPE_CHECKING:
    from pathlib import Path

ME = Operator("me", 7, 42)


def notes(directory: Path, route: str = "out") -> dict[int, str]:
    """Return the texts of a route's notes."""
    with (directory / AUDIT).open("rb") as lines:
        return {offset: note.text for offset, note in read_notes(lines, route).items()}


def changed(directory: Path, action: str, *, fails: bool = False, **details: Any) -> None:
    """Record a change, which may fail."""
    with suppress(ActionRefused), AuditFile(directory).change(action, ME, **details):
        if fails:
            raise ActionRefused("no")


def note(directory: Path, offset: int, text: str, route: str = "out") -> None:
    """Record a note."""
    changed(directory, "parked note", route=route, offset=offset, note=text)


def test_the_newest_note_of_an_entry_counts(tmp_path: Path) -> None:
    """A later note replaces an earlier one, an empty one removes it, others are left alone."""
    note(tmp_path, 3, "first")
    note(tmp_path, 4, "other")
    note(tmp_path, 3, "other route", "second")
    note(tmp_path, 3, "last")
    assert notes(tmp_path) == {3: "last", 4: "other"}
    note(tmp_path, 4, "")
    assert notes(tmp_path) == {3: "last"}
    assert notes(tmp_path, "none") == {}


def test_a_note_names_its_author_and_time(tmp_path: Path) -> None:
    """A note has the person for whom a front end acted, as every change has."""
    ann = ME.acting_for(OnBehalfOf("ann@example.org", "console"))
    with AuditFile(tmp_path).change("parked note", ann, route="out", offset=3, note="x"):
        pass
    with (tmp_path / AUDIT).open("rb") as lines:
        written = read_notes(lines, "out")[3]
    assert (written.text, written.who) == ("x", "ann@example.org")
    assert written.at > 1_700_000_000


def test_notes_follow_a_renamed_route_and_go_with_a_forgotten_one(tmp_path: Path) -> None:
    """A rename moves the notes, a removal drops them, and one that failed does neither."""
    note(tmp_path, 3, "kept")
    changed(tmp_path, "offsets rename", route="out", new="failed", fails=True)
    changed(tmp_path, "route forget", route="out", fails=True)
    changed(tmp_path, "offsets rename", route="out", new="events")
    assert (notes(tmp_path), notes(tmp_path, "events")) == ({}, {3: "kept"})
    for action in ("route forget", "offsets delete"):
        note(tmp_path, 3, "of the next route", "events")
        assert notes(tmp_path, "events") == {3: "of the next route"}
        changed(tmp_path, action, route="events")
        assert notes(tmp_path, "events") == {}


def test_lines_that_are_no_notes_do_no_harm(tmp_path: Path) -> None:
    """Torn lines, wrong types and a note's words in other lines are passed over."""
    note(tmp_path, 3, "kept")
    lines = [
        {"id": 1, "action": "parked note", "route": "out", "offset": "3", "note": "x", "at": 1},
        {"id": 2, "action": "parked note", "route": "out", "offset": 3, "note": 7, "at": 1},
        {"id": 3, "action": "parked note", "route": "out", "offset": 3, "note": "no time"},
        {"id": 4, "action": "ack", "route": "out", "reason": "parked note", "at": 1},
        {"of": 5, "outcome": "parked note"},
    ]
    text = "".join(json.dumps(each) + "\n" for each in lines)
    with (tmp_path / AUDIT).open("a") as file:
        file.write(text + '["parked note"]\n{"action": "parked note", "rou\n"parked note"\n')
    assert notes(tmp_path) == {3: "kept"}


@pytest.mark.parametrize("text", ["a" * (LONGEST + 1), "two\nlines", "\x1b[2J", "\u202ex"])
def test_a_text_that_is_no_note_is_refused(text: str) -> None:
    """A note is one bounded line."""
    with pytest.raises(ActionRefused, match="a note"):
        check_note(text)
