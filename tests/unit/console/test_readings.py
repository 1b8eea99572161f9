"""Files of a log that the console reads anew only once they have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from engine_tools import make_pipeline, run_to_end

from transporter.audit import AUDIT
from transporter.console import readings
from transporter.console.readings import read_given_up_lines, read_parked_page
from transporter.errors import UnknownName
from transporter.message import Message, messages_to_batch, with_offsets
from transporter.offsets.given_up import GivenUpLog
from transporter.offsets.offset_log import route_folder
from transporter.offsets.parked import ParkedEntry, ParkedStore, ParkReason

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


def test_the_newest_line_about_an_entry_counts(tmp_path: Path) -> None:
    """Lines that are written between two readings are there at the second."""
    assert read_given_up_lines(tmp_path) == {}
    given_up = GivenUpLog(tmp_path)
    assert given_up.record("entry-skipped", 5, "no")
    assert {at: line["event"] for at, line in read_given_up_lines(tmp_path).items()} == {
        5: "entry-skipped"
    }
    assert given_up.record("entry-skipped", 7, "no")
    assert given_up.record("parked-delivered", 5, "")
    assert {at: line["event"] for at, line in read_given_up_lines(tmp_path).items()} == {
        5: "parked-delivered",
        7: "entry-skipped",
    }


def park(directory: Path, count: int, size: int) -> Path:
    """Park entries of route ``out``, each with *size* bytes. Return the log's directory."""
    run_to_end(make_pipeline(directory, ["a 1"], out={}))
    directory /= "log"
    store = ParkedStore(route_folder(directory, "out"))
    for offset in range(count):
        batch = messages_to_batch([Message("a", b"x" * size, b"k")])
        entry = with_offsets(batch, offset, 1_700_000_000_000_000)
        store.park(ParkedEntry(offset, entry, ParkReason("no", 1, 1_700_000_000_000_000)))
    return directory


def test_a_page_of_parked_entries_ends_after_some_bytes(tmp_path: Path) -> None:
    """It has the oldest, and counts the others."""
    directory = park(tmp_path, 6, 1 << 20)
    found = read_parked_page(directory, "out", lambda each: each["offset"], most_bytes=3 << 20)
    assert (found.entries, found.left_out, found.total) == ([0, 1, 2], 3, 6)
    found = read_parked_page(directory, "out", lambda each: each["offset"], [1, 4, 99])
    assert (found.entries, found.left_out, found.total) == ([1, 4], 0, 2)
    with pytest.raises(UnknownName):
        read_parked_page(directory, "none", str)


def test_notes_are_read_again_once_the_file_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page does not read the audit file for each look at it."""
    directory = park(tmp_path, 1, 1)
    reads: list[str] = []

    def count(_: object, route: str) -> dict[int, Any]:
        reads.append(route)
        return {}

    monkeypatch.setattr(readings, "read_notes", count)
    for text in (b"{}\n", b"", b"{}\n"):
        with (directory / AUDIT).open("ab") as file:
            file.write(text)
        read_parked_page(directory, "out", str)
    assert len(reads) == 2
