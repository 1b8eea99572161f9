"""Command ``transporter log export`` beside the retention of a running engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
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
            _remove_oldest_segment(log)
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


def test_an_export_to_parquet_that_is_overtaken_between_its_two_passes_begins_again(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The types are read first; what was there then may be gone when the rows are read."""
    real, firsts = log_export._read_entries, list[int]()

    def read(directory: Path, chosen: Any, doing: str) -> Any:
        if doing == "export":
            firsts.append(chosen.first)
            if len(firsts) == 1:
                _remove_oldest_segment(log)
        yield from real(directory, chosen, doing)

    monkeypatch.setattr(log_export, "_read_entries", read)
    file = tmp_path / "x.parquet"
    assert app.execute(["log", "export", str(log), str(file)]) == 0
    assert "the export begins again" in capsys.readouterr().err
    offsets = pq.read_table(file)["offset"].to_pylist()
    assert offsets == [*range(firsts[-1], 60)]
    assert firsts[0] < firsts[-1]


def _remove_oldest_segment(log: Path) -> None:
    oldest = min(log.glob("*.log"))
    oldest.unlink()
    oldest.with_suffix(".index").unlink(missing_ok=True)
