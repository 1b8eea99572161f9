"""The option ``--contains`` of the commands that show, follow and export entries."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from transporter.cli import app
from transporter.log.commit_log import CommitLog
from transporter.message import Message, messages_to_batch

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Return a log of four entries, of which 0, 2 and 3 have to do with Ä."""
    messages = [
        Message("n", '{"name":"Ä"}'.encode(), b"1"),
        Message("n", b"plain", b"2"),
        Message("m", b"x", "Ä".encode()),
        Message("n", None, b"4", headers=[("who", "Ä & Co".encode())]),
    ]
    with CommitLog.open(tmp_path / "log") as opened:
        opened.append(messages_to_batch(messages), "r")
    return str(tmp_path / "log")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[int]:
    """Return the offsets that a command prints with ``--json``."""
    assert app.execute(["log", *arguments, "--json"]) == 0
    out = capsys.readouterr().out
    whole = (
        json.loads(out)["result"] if arguments[0] == "show" else map(json.loads, out.splitlines())
    )
    return [each["offset"] for each in whole]


def test_show_and_tail_have_only_entries_with_the_text(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text is searched as its UTF-8 bytes, together with the other filters."""
    assert shown(capsys, "show", log, "--contains", "Ä") == [0, 2, 3]
    assert shown(capsys, "show", log, "--contains", "Ä", "--last", "2") == [2, 3]
    assert shown(capsys, "show", log, "--contains", "Ä", "--namespace", "^n$", "--first", "1") == [
        0
    ]
    assert shown(capsys, "show", log, "--contains", "none") == []
    assert shown(capsys, "tail", log, "--contains", "Ä", "-n", "2") == [2, 3]


def test_an_export_has_only_entries_with_the_text(
    log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file for other tools is narrowed as the commands that show entries are."""
    file = tmp_path / "found.jsonl"
    assert app.execute(["log", "export", log, str(file), "--contains", "Ä"]) == 0
    assert "3 entries" in capsys.readouterr().out
    assert [json.loads(line)["offset"] for line in file.read_text().splitlines()] == [0, 2, 3]


def test_a_text_that_selects_nothing_is_refused(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty text is a mistake, and metadata has no contents to search."""
    assert app.execute(["log", "show", log, "--contains", ""]) == 2
    assert "--contains is empty" in capsys.readouterr().err
    assert app.execute(["log", "show", log, "--contains", "x", "--metadata"]) == 2
    assert "--metadata can be combined" in capsys.readouterr().err
