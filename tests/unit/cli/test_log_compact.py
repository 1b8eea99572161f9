"""Calls of ``transporter log compact`` as a function."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from compaction_tools import Frame, everything, letters, write_log
from engine_tools import make_pipeline
from log_tools import crash

from transporter.cli.log_compact import compact
from transporter.errors import ConfigError, EnvironmentFault, LogLocked
from transporter.log.commit_log import CommitLog
from transporter.log.compaction import CompactionSettings
from transporter.log.filesystem import RealFileSystem
from transporter.log.lock import DirectoryLock
from transporter.log.maintenance import (
    CompactionRules,
    MaintenanceRecord,
    read_maintenance,
    write_maintenance,
)
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
    """Return the result that the command printed as JSON."""
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["result"]
    return found


def test_a_dry_run_tells_what_would_go(pipeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run needs no lock and changes nothing."""
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
    """Obsolete entries are dropped, and a table shows the result."""
    compact(pipeline)
    shown = capsys.readouterr().out
    assert "held by route out" in shown
    assert "dropped 2 entries of 1 segment\n" in shown
    assert list(everything(pipeline.parent / "log")) == [2, 3, 4]


def recorded(log: Path, readers: dict[str, int], keep: str = "key") -> None:
    """Write the record of an engine that kept by *keep*, with its acknowledgements to *readers*."""
    rules = CompactionRules(1e-6, keep, 86400.0, "lz4")
    write_maintenance(RealFileSystem(), log, MaintenanceRecord(rules, readers))


def test_a_log_directory_is_compacted_as_its_last_engine_would(
    pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last engine's settings apply, here keeping every entry without a key."""
    log = pipeline.parent / "log"
    recorded(log, {"in": 100})
    compact(log, as_json=True)
    found = said(capsys)
    assert (found["looked_at"], found["dropped"]) == (1, 0)
    assert len(everything(log)) == 5


def test_a_log_directory_without_a_record_is_refused(pipeline: Path) -> None:
    """The error names the pipeline file, because defaults could drop entries it keeps."""
    with pytest.raises(EnvironmentFault, match="give its pipeline file"):
        compact(pipeline.parent / "log")
    assert len(everything(pipeline.parent / "log")) == 5


@pytest.mark.parametrize("compaction", [{}, {"after": "off"}])
def test_a_file_that_does_not_ask_for_it_is_refused(
    pipeline: Path, compaction: dict[str, str]
) -> None:
    """Without compaction settings the command is refused, with the settings to add."""
    document = json.loads(pipeline.read_text())
    document["log"]["compaction"] = compaction
    pipeline.write_text(json.dumps(document))
    for dry_run in (False, True):
        with pytest.raises(ConfigError, match="set 'keep: key' or 'keep: namespace'"):
            compact(pipeline, dry_run=dry_run)
    assert len(everything(pipeline.parent / "log")) == 5


def test_a_log_that_its_engine_did_not_compact_is_refused(pipeline: Path) -> None:
    """A directory without a pipeline file allows only the settings of its last engine."""
    log = pipeline.parent / "log"
    rules = CompactionRules(None, "namespace", 86400.0, "lz4")
    write_maintenance(RealFileSystem(), log, MaintenanceRecord(rules, {"in": 100}))
    with pytest.raises(EnvironmentFault, match="did not compact it; give its pipeline file"):
        compact(log)
    assert len(everything(log)) == 5


@pytest.mark.parametrize("given", ["pipeline", "directory"])
def test_what_a_source_was_not_told_of_stays(
    pipeline: Path, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    """Entries not yet acknowledged to their source stay, for its redeliveries (Invariant 11)."""
    log = pipeline.parent / "log"
    recorded(log, {"in": 1, "other": 100}, keep="namespace")
    compact(pipeline if given == "pipeline" else log, as_json=True)
    found = said(capsys)
    assert (found["held_by"], found["below"], found["dropped"]) == ("reader in", 1, 0)
    assert len(everything(log)) == 5


def test_without_a_record_a_crashed_log_is_refused(pipeline: Path) -> None:
    """A crashed log is refused, because only the engine can find its sources' state."""
    log = pipeline.parent / "log"
    crash(CommitLog.open(log))
    with pytest.raises(EnvironmentFault, match="start the pipeline once"):
        compact(pipeline)


def test_the_next_engine_is_spared_what_was_compacted(
    pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record holds how far the log is compacted, and with which settings."""
    log = pipeline.parent / "log"
    recorded(log, {"in": 100})
    compact(pipeline)
    assert "dropped 2" in capsys.readouterr().out
    record = read_maintenance(RealFileSystem(), log)
    assert record is not None
    assert record.readers == {"in": 100}
    assert record.compacted_through(CompactionSettings(1e-6)) == 3
    assert record.compacted_through(CompactionSettings(1e-6, "key")) == -1


def test_variables_that_it_does_not_need_may_be_missing(
    pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the record of an engine, nothing beside the section log is read."""
    document = json.loads(pipeline.read_text())
    document["readers"][0]["path"] = "${NOT_SET_HERE:?the source}"
    pipeline.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="NOT_SET_HERE is not set"):
        compact(pipeline, dry_run=True)
    recorded(pipeline.parent / "log", {"in": 100})
    compact(pipeline, dry_run=True, as_json=True)
    assert said(capsys)["dropped"] == 2
    compact(pipeline)
    assert "dropped 2" in capsys.readouterr().out


def test_a_running_engine_is_named(pipeline: Path) -> None:
    """A log in use by another process is refused."""
    with closing(_Held(pipeline.parent / "log")), pytest.raises(LogLocked):
        compact(pipeline)


def test_without_a_log_nothing_is_made(tmp_path: Path) -> None:
    """A directory without a log is an error, and stays unchanged."""
    with pytest.raises(EnvironmentFault, match="no transporter log"):
        compact(tmp_path, dry_run=True)
    assert list(tmp_path.iterdir()) == []
