"""The incidents of docs/how-to, reproduced and mended as their pages say."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cdc_tools import clean_slots
from page_tools import ROOT, Page, followed, pattern, psql_path
from services.postgres import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.postgres import Database

INDEX = "how-to/index.md"
KINDS = [
    pytest.param(False, id="without Spark"),
    pytest.param(True, id="on Spark", marks=(pytest.mark.exhaustive, pytest.mark.spark)),
]
real_or_not = pytest.mark.parametrize("real", KINDS)


@contextmanager
def the_pipeline(folder: Path, *, real: bool) -> Iterator[None]:
    """Run the pipeline of the pages, as their index says."""
    with followed(INDEX, folder, real=real) as page:
        page.run("The pipeline of these pages")
        yield


@real_or_not
def test_an_entry_fails(tmp_path: Path, real: bool) -> None:
    """A parked entry is found, its step corrected and tried, and the entry delivered."""
    with the_pipeline(tmp_path, real=real), followed("how-to/poison-entry.md", tmp_path) as page:
        follow(page, "Try it", "What you see", "What to do", "How to see that it is mended")


@real_or_not
def test_a_wrong_step_was_shipped(tmp_path: Path, real: bool) -> None:
    """Entries of a wrong step are delivered again by the corrected one."""
    with the_pipeline(tmp_path, real=real), followed("how-to/wrong-step.md", tmp_path) as page:
        follow(page, "Try it", "What you see", "What to do", "How to see that it is mended")


@real_or_not
def test_a_sink_is_stuck(tmp_path: Path, real: bool) -> None:
    """A route retries until its sink is there, and the other one does not wait."""
    port = str(free_port())
    with followed("how-to/stuck-sink.md", tmp_path, real=real, SEARCH_PORT=port) as page:
        follow(page, "Try it", "What you see", "What to do", "How to see that it is mended")


@real_or_not
def test_the_log_is_full(tmp_path: Path, real: bool) -> None:
    """A reader waits for room, and continues once the route that holds the log does."""
    with followed("how-to/full-disk.md", tmp_path, real=real) as page:
        follow(page, "Try it", "What you see", "What to do", "How to see that it is mended")


@real_or_not
def test_a_segment_is_corrupt(tmp_path: Path, real: bool) -> None:
    """A damaged entry halts one route, is found and repaired, and is passed by an operator."""
    with followed("how-to/corrupt-segment.md", tmp_path, real=real) as page:
        follow(page, "Try it")
        page.stop()
        follow(page, "Damage it", "What you see")
        page.stop()
        follow(page, "What to do", "Start again", "How to see that it is mended")


@pytest.mark.exhaustive
@pytest.mark.postgres
@real_or_not
def test_leadership_or_a_slot_is_lost(postgres: Database, tmp_path: Path, real: bool) -> None:
    """A fenced reader leads again, and a table whose slot was dropped is copied again."""
    variables = {"ORDERS_DSN": postgres.dsn, "PATH": psql_path()}
    with (
        clean_slots(postgres),
        followed("how-to/lost-leadership.md", tmp_path, real=real, **variables) as page,
    ):
        follow(page, "Try it: an outbox with two engines", "Two engines")
        follow(page, "What you see: fenced", "What to do: fenced")
        page.stop()
        follow(page, "Restart", "How to see that it is mended: fenced")
        page.stop()
        follow(page, "Try it: a slot that was dropped")
        page.stop()
        follow(page, "Drop it", "What you see: the slot is gone", "What to do: the slot is gone")
        follow(page, "How to see that it is mended: the slot is gone")
        page.stop()
        follow(page, "Clean up")


def follow(page: Page, *sections: str) -> None:
    """Run the blocks of the sections, in this order."""
    for section in sections:
        page.run(section)


def test_every_page_of_an_incident_is_followed() -> None:
    """No page is left out, and each is in the table of their index."""
    here = Path(__file__).read_text(encoding="utf-8")
    index = (ROOT / "docs" / INDEX).read_text(encoding="utf-8")
    pages = sorted(each.name for each in (ROOT / "docs" / "how-to").glob("*.md"))
    assert len(pages) == 7
    assert [each for each in pages if f'"how-to/{each}"' not in here] == []
    assert [each for each in pages if each != "index.md" and f"]({each})" not in index] == []


@pytest.mark.parametrize(
    ("shown", "output", "fits"),
    [
        ("a  b\n", "a     b\n", True),
        ("a  b\n", "a  c\n", False),
        ("a …\n", "a 17 b\n", True),
        ("…\nb\n", "x\ny\nb\n", True),
        ("…\nb\n", "x\ny\nb\nc\n", False),
        ("pid … runs\n", "pid 17 stops\n", False),
        ("a\n", "a\na\n", False),
    ],
)
def test_an_output_is_compared_as_a_whole(shown: str, output: str, fits: bool) -> None:
    """``…`` stands for any text, blanks for any blanks, and everything else for itself."""
    assert bool(pattern(shown).fullmatch(output)) == fits
