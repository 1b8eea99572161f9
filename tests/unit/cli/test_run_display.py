"""Output of a running engine on standard error, to any destination."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from transporter.cli.run_display import EventPrinter

TELLING = """
import sys
from transporter.cli.run_display import engine_reporter, unfailing_stderr
with unfailing_stderr(), engine_reporter("json", live=False, hints="") as report:
    for turn in range(5_000):
        report("engine-started", log="log", turn=turn)
    print("delivered", flush=True)
sys.exit(7)
"""


@pytest.mark.parametrize("leads_to", ["a full disk", "a closed pipe", "a file"])
def test_what_cannot_be_told_ends_nothing(leads_to: str, tmp_path: Path) -> None:
    """A full log disk, or a closed pipe, does not affect the pipeline."""
    place = Path("/dev/full") if leads_to == "a full disk" else tmp_path / "stderr"
    with place.open("w") as file:
        told = subprocess.PIPE if leads_to == "a closed pipe" else file
        process = subprocess.Popen(
            [sys.executable, "-c", TELLING], stdout=subprocess.PIPE, stderr=told, text=True
        )
        if process.stderr is not None:
            process.stderr.close()
        output, _ = process.communicate(timeout=60)
    assert (output, process.returncode) == ("delivered\n", 7)
    if leads_to == "a file":
        assert len(place.read_text().splitlines()) == 5_000


READER = {"name": "in", "state": "running", "logged": 7}
COUNTS = {"delivered": 7, "skipped": 0, "parked": 0, "watermark": 6, "lag": 0}
ROUTE = {"name": "out", "state": "running", **COUNTS}


class Watched:
    """A log with a clock set by the test. ``lines`` returns the lines since the last call."""

    def __init__(self, capsys: pytest.CaptureFixture[str], level: str = "info") -> None:
        self.now, self._capsys = 0.0, capsys
        self.log = EventPrinter("json", colours=False, level=level, clock=lambda: self.now)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._capsys.readouterr().err.splitlines()]

    def pass_time(self, seconds: int, route: dict[str, Any] = ROUTE, doing: str = "") -> list[str]:
        """Show the same status four times a second, and return the events that were written."""
        status = {"readers": [READER], "routes": [route]}
        for _ in range(seconds * 4 or 1):
            self.now += 0.25
            self.log.show_status(status, doing)
        return [line["event"] for line in self.lines()]


def test_progress_that_does_not_change_is_written_once_a_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Changed progress is written every ten seconds, and unchanged progress once a minute."""
    watched = Watched(capsys)
    both = ["reader-progress", "route-progress"]
    assert watched.pass_time(10) == both
    assert watched.pass_time(59) == []
    assert watched.pass_time(1) == both
    assert watched.pass_time(600) == both * 10
    moved = ROUTE | {"delivered": 8}
    assert watched.pass_time(10, moved) == ["route-progress"]
    assert watched.pass_time(10, moved | {"state": "retrying"}) == ["route-progress"]


def test_the_end_of_a_run_is_written_whatever_was_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The final progress is in the last lines, even directly after others."""
    watched = Watched(capsys)
    watched.pass_time(10)
    assert watched.pass_time(0, doing="stopped") == ["reader-progress", "route-progress"]


def test_debug_adds_progress_that_has_not_changed(capsys: pytest.CaptureFixture[str]) -> None:
    """With the level debug every reader and route has a line every ten seconds."""
    assert len(Watched(capsys, "debug").pass_time(60)) == 12


@pytest.mark.parametrize(
    ("level", "written"),
    [
        ("debug", ["engine-started", "route-retrying", "route-stopped"]),
        ("info", ["engine-started", "route-retrying", "route-stopped"]),
        ("warning", ["route-retrying", "route-stopped"]),
        ("error", ["route-stopped"]),
    ],
)
def test_what_is_below_the_level_has_no_line(
    capsys: pytest.CaptureFixture[str], level: str, written: list[str]
) -> None:
    """Events below the level are left out, and progress has the level info."""
    watched = Watched(capsys, level)
    for event in ("engine-started", "route-retrying", "route-stopped"):
        watched.log(event, route="out")
    assert [line["event"] for line in watched.lines()] == written
    assert bool(watched.pass_time(10)) == (level in ("debug", "info"))


DETAILS = {
    "table": "public.orders",
    "added": ["tier", "a\x1b"],
    "members": {"readers": ["in"], "routes": []},
    "problem": "refused\n\tIs it up?",
    "count": 3,
}


def test_a_list_is_a_list_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Details of an event are values of JSON, and each text is one line."""
    EventPrinter("json", colours=False)("schema-changed", **DETAILS)
    line = json.loads(capsys.readouterr().err)
    assert line["added"] == ["tier", "a\\x1b"]
    assert line["members"] == {"readers": ["in"], "routes": []}
    assert (line["problem"], line["count"]) == ("refused Is it up?", 3)


def test_a_list_is_text_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing appears as a program would write it."""
    EventPrinter("text", colours=False)("schema-changed", **DETAILS)
    line = capsys.readouterr().err
    assert "added='tier, a" in line
    assert "members='readers=in, routes=' " in line
    assert "problem='refused Is it up?' " in line
    assert "[" not in line.partition("schema-changed")[2]
