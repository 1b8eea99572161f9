"""Files of a log that the console reads anew only once they have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.console.readings import read_given_up_lines
from transporter.offsets.given_up import GivenUpLog

if TYPE_CHECKING:
    from pathlib import Path


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
