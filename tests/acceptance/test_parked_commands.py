"""The parked and offsets commands as an operator uses them, on a log without an engine."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from acceptance_tools import TRANSPORTER, transporter

from transporter.log.commit_log import CommitLog
from transporter.log.reader import LogReader
from transporter.offsets.offset_log import OffsetLog, declared_routes, read_state
from transporter.offsets.parked import ParkedEntry, ParkedStore, ParkReason, parked_path
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def log(tmp_path: Path, batch: Callable[..., pa.RecordBatch]) -> Path:
    """Return the directory of a log of five entries, of which ``out`` has parked 1 and 3."""
    directory = tmp_path / "log"
    with CommitLog.open(directory) as opened, OffsetLog(directory, "out") as offsets:
        opened.append(batch(5), "r")
        offsets.settle(Range(0, 4), opened.durable)
        store = ParkedStore(offsets.folder)
        with LogReader(directory) as reader:
            for offset in (1, 3):
                (entry,) = reader.read(offset, offset)
                store.park(ParkedEntry(offset, entry, ParkReason(f"no {offset}\x1b[31m", 5, 1)))
    return directory


def said(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user does, without ``--json``."""
    return subprocess.run(
        [*TRANSPORTER, *arguments], capture_output=True, text=True, timeout=180, check=False
    )


def test_list_shows_every_parked_entry_with_its_error(log: Path) -> None:
    """Each parked entry is listed with offset, key, attempts and error, escapes made harmless."""
    found = transporter("parked", "list", str(log), "out")
    assert [(each["offset"], each["attempts"]) for each in found] == [(1, 5), (3, 5)]
    assert found[0]["entry"]["key"] == "k1"
    shown = said("parked", "list", str(log), "out").stdout
    assert "no 1" in shown
    assert "\x1b" not in shown


def test_a_damaged_file_does_not_hide_the_others(log: Path) -> None:
    """A list shows readable entries and fails with the others' names, and a skip removes those."""
    path = parked_path(log / "offsets" / "out", 1)
    path.write_bytes(b"nonsense")
    listed = said("parked", "list", str(log), "out")
    assert listed.returncode == 1
    assert "no 3" in listed.stdout
    assert str(path) in listed.stderr
    shown = said("parked", "show", str(log), "out", "1")
    assert (shown.returncode, "not a parked entry" in shown.stderr) == (1, True)
    transporter("parked", "skip", str(log), "out", "1")
    assert [each["offset"] for each in transporter("parked", "list", str(log), "out")] == [3]


@pytest.mark.exhaustive
def test_retry_is_a_durable_request(log: Path) -> None:
    """Parked retry leaves the entries in place, and the request in the offset log."""
    transporter("parked", "retry", str(log), "out", "3")
    assert read_state(log, "out").retries == (3,)
    transporter("parked", "retry", str(log), "out")
    assert read_state(log, "out").retries == (1, 3)
    listed = transporter("parked", "list", str(log), "out")
    assert [each["retry_requested"] for each in listed] == [True, True]


def test_skip_gives_up_what_it_names_and_is_audited(log: Path) -> None:
    """Parked skip removes the entries, and records its reason in the audit file."""
    transporter("parked", "skip", str(log), "out", "1..2", "--reason", "a test order")
    assert [each["offset"] for each in transporter("parked", "list", str(log), "out")] == [3]
    (audit,) = transporter("audit", str(log))
    assert (audit["action"], audit["offsets"], audit["reason"]) == (
        "parked skip",
        [1],
        "a test order",
    )


@pytest.fixture
def row(log: Path) -> Path:
    """Return the log with two more parked entries, of one key, behind the one at 1."""
    store = ParkedStore(log / "offsets" / "out")
    for offset, behind in ((2, 1), (4, 1)):
        first = store.load(1)
        entries = first.entries.set_column(0, "offset", pa.array([offset], pa.int64()))
        store.park(ParkedEntry(offset, entries, ParkReason("behind 1", 0, 1, behind)))
    return log


@pytest.mark.parametrize("act", ["retry", "skip"])
def test_those_behind_follow_unless_only_one_is_named(row: Path, act: str) -> None:
    """The text and the JSON name the entries that follow, or that stay parked."""
    told = transporter("parked", act, str(row), "out", "1", "--only")
    assert (told["offsets"], told["followers"], told["left"]) == ([1], [], [2, 4])
    state = read_state(row, "out")
    assert (state.retries, state.skips) == ((1,) if act == "retry" else (), ())
    text = said("parked", act, str(row), "out", "1" if act == "retry" else "2").stdout
    followers = "offsets 2, 4" if act == "retry" else "offset 4"
    assert f"; {followers} behind it will follow" in text
    state = read_state(row, "out")
    assert (state.retries, state.only) == ((1,) if act == "retry" else (4,), ())


def test_what_is_not_parked_is_refused(log: Path) -> None:
    """A retry of an offset that is not parked is an error with that reason."""
    done = said("parked", "retry", str(log), "out", "2")
    assert (done.returncode, "nothing is parked" in done.stderr) == (1, True)


def test_a_route_is_renamed_with_its_progress(log: Path) -> None:
    """Offsets rename gives watermark and parked entries to the new name."""
    assert said("offsets", "rename", str(log), "out", "new").returncode == 0
    assert read_state(log, "new").watermark == 4
    assert [each["offset"] for each in transporter("parked", "list", str(log), "new")] == [1, 3]
    assert said("offsets", "rename", str(log), "out", "other").returncode == 2
    with OffsetLog(log, "third"):
        pass
    assert said("offsets", "rename", str(log), "new", "third").returncode == 3
    assert said("offsets", "rename", str(log), "new", "../away").returncode == 2


def test_a_route_is_deleted_only_when_that_is_meant(log: Path) -> None:
    """Offsets delete asks, does nothing without an answer, and with --yes removes the route."""
    assert said("offsets", "delete", str(log), "out").returncode != 0
    assert declared_routes(log) == ["out"]
    assert said("offsets", "delete", str(log), "out", "--yes").returncode == 0
    assert declared_routes(log) == []


@pytest.mark.exhaustive
def test_changing_commands_are_refused_while_an_engine_runs(log: Path) -> None:
    """Each command that changes state names the engine that holds the log."""
    with CommitLog.open(log):
        for command in (
            ["parked", "retry", str(log), "out"],
            ["parked", "skip", str(log), "out", "1"],
            ["offsets", "rename", str(log), "out", "new"],
            ["offsets", "delete", str(log), "out", "--yes"],
            ["ack", str(log), "out", "1"],
        ):
            done = said(*command)
            assert (done.returncode, "in use by the process" in done.stderr) == (3, True), command
        assert said("parked", "list", str(log), "out").returncode == 0
