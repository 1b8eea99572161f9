"""The page that a run of the benchmarks writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.figures import Aim, Comparison, Section
from benchmarks.machine import Machine
from benchmarks.report import Report, markdown, number

MACHINE = Machine(
    date="2030-01-31 08:00 UTC",
    commit="abc",
    cores=2,
    processor="A processor",
    memory_gib=8.0,
    kernel="Linux 9",
    file_system="ext4",
    sync_small_ms=(0.1, 0.2),
    sync_large_ms=(1.0, 2.0),
    load_before=0.5,
    versions={"python": "3.11"},
)
FOUND = Comparison("ours", "theirs", "rows/s", (1000.0, 3000.0), (2000.0, 2000.0))
SECTION = Section("one", "How.", (FOUND,), limits="The disk.")
REPORT = Report(MACHINE, (SECTION,), quick=False, seconds=12.0, load_after=0.7)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.01234, "0.012"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (123.4, "123.4"),
        (1234567.8, "1 234 568"),
    ],
)
def test_numbers_have_about_three_digits(value: float, text: str) -> None:
    """Numbers have no more digits than a benchmark can measure."""
    assert number(value) == text


def test_a_line_shows_both_sides_with_their_spread_and_the_ratio() -> None:
    """Each line has ours, theirs and the ratio, each with least and greatest."""
    row = "| ours | 2 000 (1 000-3 000) rows/s | theirs: 2 000 (2 000-2 000) rows/s | "
    assert row + "1.00 (0.500-1.50) |  |  |" in markdown(REPORT)


def test_the_reason_is_given_for_a_missed_aim_only() -> None:
    """The limiting factor is given for a missed aim, and nowhere else."""
    missed = replace(FOUND, aim=Aim(1.1, at_least=True))
    reached = replace(FOUND, aim=Aim(0.9, at_least=True))
    pages = [
        markdown(replace(REPORT, sections=(replace(SECTION, comparisons=(row,)),)))
        for row in (missed, reached)
    ]
    assert ["The disk." in page for page in pages] == [True, False]
    assert "≥ 1.1 | **missed** |" in pages[0]
    assert "≥ 0.9 | reached |" in pages[1]


def test_the_machine_and_its_disk_are_on_the_page() -> None:
    """The page names the machine, its syncs and the date."""
    page = markdown(REPORT)
    for fact in (
        "2030-01-31",
        "A processor",
        "ext4",
        "0.10 and 0.20 ms",
        "python 3.11",
        "acks=all",
    ):
        assert fact in page


def test_a_quick_run_says_that_it_is_one() -> None:
    """A quick run is marked as a smoke test."""
    assert "smoke test" in markdown(replace(REPORT, quick=True))
    assert "smoke test" not in markdown(REPORT)
