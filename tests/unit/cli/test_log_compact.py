"""``transporter log compact``, called as a function."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from compaction_tools import Frame, everything, letters, write_log
from engine_tools import make_pipeline

from transporter.cli.log_compact import compact
from transporter.errors import EnvironmentFault, LogLocked
from transporter.log.lock import DirectoryLock
from transporter.offsets.offset_log import OffsetLog
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """Return a pipeline file whose log has a segment to compact that every route has passed."""
    make_pipeline(tmp_path, [], out={})
    path = tmp_path / "pipeline.yaml"
    document = json.loads(path.read_text())
    document["log"]["compaction"] = {"after": "1us"}
    path.write_text(json.dumps(document))
    last = write_log(tmp_path / "log", [[Frame(letters("AAAB"))], [Frame(letters("A"))]])
    with OffsetLog(tmp_path / "log", "out") as route:
        route.settle(Range(0, 3), last)
    return path


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return what the command printed as JSON."""
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["result"]
    return found


def test_a_dry_run_tells_what_would_go(pipeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It needs no lock and changes nothing."""
    log = pipeline.parent / "log"
    with closing(_Held(log)):
        compact(pipeline, dry_run=True, as_json=True)
    found = said(capsys)
    assert (found["dry_run"], found["dropped"], found["freed"]) == (True, 2, 0)
    assert (found["held_by"], found["below"]) == ("route out", 3)
    assert len(everything(log)) == 5


class _Held:
    """A log's lock, as another process holds it."""

    def __init__(self, directory: Path) -> None:
        self._lock = DirectoryLock(directory)

    def close(self) -> None:
        self._lock.release()


def test_it_compacts_as_the_pipeline_says(
    pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is obsolete goes, and a table says where."""
    compact(pipeline)
    shown = capsys.readouterr().out
    assert "held by route out" in shown
    assert "dropped 2 entries of 1 segments" in shown
    assert list(everything(pipeline.parent / "log")) == [2, 3, 4]


def test_a_log_directory_gets_the_defaults(
    pipeline: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a pipeline file a segment must be a week old."""
    compact(pipeline.parent / "log", as_json=True)
    assert said(capsys)["looked_at"] == 1
    last = write_log(pipeline.parent / "young", [[Frame(letters("AA"))]] * 2, clock=_now)
    with OffsetLog(pipeline.parent / "young", "out") as route:
        route.settle(Range(0, last), last)
    compact(pipeline.parent / "young", as_json=True)
    assert said(capsys)["looked_at"] == 0


def _now() -> int:
    from transporter.log.commit_log import wall_clock  # noqa: PLC0415 - as its name says

    return wall_clock()


def test_a_running_engine_is_named(pipeline: Path) -> None:
    """Two must not compact one log."""
    with closing(_Held(pipeline.parent / "log")), pytest.raises(LogLocked):
        compact(pipeline)


def test_without_a_log_nothing_is_made(tmp_path: Path) -> None:
    """A wrong directory is an error, and stays as it is."""
    with pytest.raises(EnvironmentFault, match="no transporter log"):
        compact(tmp_path, dry_run=True)
    assert list(tmp_path.iterdir()) == []
