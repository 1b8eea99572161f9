"""The rows of ``top`` and their order, after keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from transporter.cli import app
from transporter.cli.status_table import StatusRow
from transporter.cli.top import TopView
from transporter.log.commit_log import CommitLog

if TYPE_CHECKING:
    from pathlib import Path


def row(name: str, state: str, **numbers: float) -> StatusRow:
    """Return a row of the table."""
    named = {key.replace("_", " "): value for key, value in numbers.items()}
    return StatusRow(name, {"": name, "state": state}, named, "")


ROWS = [
    row("reader shop", "running", lag=5, per_second=9),
    row("route b", "stopped", lag=70, per_second=0, parked=2),
    row("route a", "running", lag=7, per_second=80),
]


def shown(*keys: str) -> list[str]:
    """Return the names that are shown after *keys*."""
    view = TopView()
    for each in keys:
        view.press(each)
    return [each.name for each in view.arrange(ROWS)]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("", ["reader shop", "route b", "route a"]),
        ("s", ["reader shop", "route a", "route b"]),
        ("ss", ["reader shop", "route a", "route b"]),
        ("sss", ["route b", "route a", "reader shop"]),
        ("ssss", ["route a", "reader shop", "route b"]),
        ("sssss", ["route b", "reader shop", "route a"]),
        ("ssssss", ["reader shop", "route b", "route a"]),
    ],
)
def test_sorting(keys: str, expected: list[str]) -> None:
    """`s` goes through the orders: file, name, state, lag, rate, parked."""
    assert shown(keys) == expected


def test_filtering() -> None:
    """Text typed after `/` filters the names, and keys are text until Enter."""
    assert shown("/", "ROUTE") == ["route b", "route a"]
    assert shown("/", "shopq") == []
    assert shown("/", "shopq", "\x7f", "\r", "s") == ["reader shop"]
    assert shown("/", "shop", "\x1b") == ["reader shop", "route b", "route a"]
    assert shown("/", "shop", "\n", "\x1b") == ["reader shop", "route b", "route a"]


def test_pausing_and_ending() -> None:
    """`p` or a blank pauses and resumes, `q` ends, and an arrow key is not an Escape."""
    view = TopView()
    view.press("p")
    assert view.paused
    view.press(" ")
    assert not view.paused
    view.press("/x\r")
    view.press("\x1b[A")
    assert list(view.arrange(ROWS)) == []
    view.press("q")
    assert view.ended


def test_the_footer_tells_the_keys() -> None:
    """The footer names each key, and the current choice."""
    view = TopView()
    assert view.footer == "q quit · s sort: file · p pause · / filter"
    view.press("sssp/or")
    assert view.footer == "enter keep · esc clear · s sort: lag · p resume (paused) · / filter: or_"
    view.press("\r")
    assert view.footer == "q quit · s sort: lag · p resume (paused) · / filter: or"


def test_into_a_file_each_update_is_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal each update is printed at once, and not only the last."""
    CommitLog.open(tmp_path / "log").close()
    assert app.execute(["top", str(tmp_path / "log"), "--every", "0.1", "--times", "3"]) == 0
    assert capsys.readouterr().out.count("no engine runs · log") == 3
