"""Text of ``transporter ready``."""

from __future__ import annotations

from typing import Any

from transporter.cli.ready import report_lines

REASON = {
    "kind": "route",
    "name": "out",
    "state": "retrying",
    "why": "its sink fails and is retried",
    "seconds": 41.2,
    "lag": 3,
    "parked": 0,
}


def report(**changes: Any) -> list[str]:
    """Return the lines of a report."""
    return list(
        report_lines({"ready": True, "spark": True, "reasons": [], "paused": [], **changes})
    )


def test_an_engine_that_ends_says_so() -> None:
    """The reason is the engine's own, which has no name."""
    ends = {"kind": "engine", "name": "", "state": "stopping", "why": "it drains", "seconds": 2.0}
    assert report(ready=False, reasons=[ends]) == [
        "not ready",
        "  engine: stopping, it drains; for 2 s",
    ]


def test_a_ready_engine_is_one_word_and_its_pauses() -> None:
    """A pause is shown, and is not a reason."""
    assert report() == ["ready"]
    assert report(paused=["out"]) == ["ready", "  out: paused by an operator"]


def test_each_reason_is_a_line() -> None:
    """A reason names the part, its state and the time without progress."""
    assert report(ready=False, reasons=[REASON]) == [
        "not ready",
        "  route out: retrying, its sink fails and is retried; no progress for 41 s",
    ]


def test_a_name_cannot_control_the_terminal() -> None:
    """Control characters of a name are escaped."""
    assert "\x1b" not in "".join(report(ready=False, reasons=[{**REASON, "name": "\x1b[2J"}]))
