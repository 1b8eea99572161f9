"""Command ``transporter log export`` beside the retention of a running engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from transporter.cli import app, log_export
from transporter.log.commit_log import CommitLog
from transporter.message import Message, messages_to_batch

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log of several segments."""
    with CommitLog.open(tmp_path / "log", segment_bytes=2048) as opened:
        for number in range(60):
            opened.append(messages_to_batch([Message("n", b"%03d" % number * 300)]), "r")
    return tmp_path / "log"


@pytest.mark.parametrize("always", [False, True])
def test_an_export_that_retention_overtakes_begins_again(
    log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    always: bool,
) -> None:
    """What was selected may be gone when it is read; the rest is exported all the same."""
    real, looks = log_export.select_entries, list[int]()

    def select(*arguments: Any) -> Any:
        chosen = real(*arguments)
        looks.append(chosen.first)
        if always or len(looks) == 1:
            oldest = min(log.glob("*.log"))
            oldest.unlink()
            oldest.with_suffix(".index").unlink(missing_ok=True)
        return chosen

    monkeypatch.setattr(log_export, "select_entries", select)
    file = tmp_path / "x.jsonl"
    code = app.execute(["log", "export", str(log), str(file)])
    shown = capsys.readouterr().err
    if always:
        assert code == 1
        assert "no longer in the log" in shown
        assert not file.exists()
        return
    assert code == 0
    offsets = [json.loads(line)["offset"] for line in file.read_text().splitlines()]
    assert offsets == [*range(looks[-1], 60)]
    assert offsets[0] > looks[0]
    assert "the export begins again" in shown
