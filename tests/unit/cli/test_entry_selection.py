"""The options of the log commands that select entries."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
import typer
from log_tools import damage

from transporter.cli.app import execute
from transporter.cli.entry_selection import (
    inspect_log,
    open_selection,
    parse_filters,
    parse_moment,
    select_entries,
)
from transporter.log.commit_log import CommitLog
from transporter.log.reader import LogReader
from transporter.log.search import END, EntryFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.inspection import LogInfo

NOW = datetime(2030, 1, 31, 8, 0, tzinfo=UTC)
NOW_US = 1_896_076_800_000_000
HOUR = 3_600_000_000


@pytest.fixture
def in_kolkata(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the local time to five and a half hours ahead."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2030-01-31T08:00:00+00:00", NOW_US),
        ("2030-01-31T08:00Z", NOW_US),
        ("2030-01-31T09:00:00.000001+01:00", NOW_US + 1),
        ("1h", NOW_US - HOUR),
        ("1h ago", NOW_US - HOUR),
        ("90m", NOW_US - 3 * HOUR // 2),
        ("200ms", NOW_US - 200_000),
        ("999999999999d", 0),
        ("1969-12-31T23:59:59Z", 0),
        ("9999-12-31T23:59:59Z", 253_402_300_799_000_000),
    ],
)
def test_times(text: str, meant: int, capsys: pytest.CaptureFixture[str]) -> None:
    """ISO 8601 with a zone, and durations before now, are parsed to the microsecond."""
    assert parse_moment(text, NOW) == meant
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("in_kolkata")
def test_a_time_without_a_zone_is_local_and_that_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The assumed time zone is printed on stderr."""
    assert parse_moment("2030-01-31T13:30", NOW) == NOW_US
    said = capsys.readouterr()
    assert (said.out, "2030-01-31T13:30:00+05:30" in said.err) == ("", True)


@pytest.mark.parametrize("text", ["", "yesterday", "10", "10x", "2030-13-01", "ago", "\x1b[2J"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """The error shows the format of a time."""
    with pytest.raises(typer.BadParameter, match="neither an offset nor a time"):
        parse_moment(text, NOW)


@pytest.fixture
def found(tmp_path: Path, batch: Callable[..., pa.RecordBatch]) -> LogInfo:
    """Return a log of the offsets 4 to 11, two per microsecond, without the removed 0 to 3."""
    now = iter(range(1, 100))
    with CommitLog.open(tmp_path, segment_bytes=1, clock=lambda: next(now)) as log:
        for _ in range(6):
            log.append(batch(2), "r")
    for base in (0, 2):
        (tmp_path / f"{base:020d}.log").unlink()
    return inspect_log(tmp_path)


@pytest.mark.parametrize(
    ("offsets", "start", "to", "span", "said"),
    [
        (None, None, None, (4, 11), ""),
        ("5..6", None, None, (5, 6), ""),
        ("9", None, None, (9, 9), ""),
        ("9..99", None, None, (9, 11), ""),
        ("90..99", None, None, (90, 11), ""),
        ("1..6", None, None, (4, 6), "offsets 1..3 are gone: the log is retained from 4"),
        (None, "6", None, (6, 11), ""),
        (None, "0", "6", (4, 6), "offsets 0..3 are gone"),
        (None, "1970-01-01T00:00Z", None, (4, 11), ""),
    ],
)
def test_offsets_are_those_that_the_log_holds(
    found: LogInfo,
    offsets: str | None,
    start: str | None,
    to: str | None,
    span: tuple[int, int],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Removed offsets are reported, and future ones are left out."""
    chosen = select_entries(found, found.last, offsets, start, to, EntryFilter())
    assert (chosen.first, chosen.last) == span
    error = capsys.readouterr().err
    assert said in error if said else error == ""


def test_times_become_bounds_and_a_filter(found: LogInfo) -> None:
    """Entries are selected by their own log time, and the offsets only bound the search."""
    start, to = "1970-01-01T00:00:00.000005Z", "1970-01-01T00:00:00.000006Z"
    chosen = select_entries(found, found.last, None, start, to, EntryFilter("x"))
    assert chosen.filters == EntryFilter("x", since=5, until=6)
    assert 4 <= chosen.first <= 6
    assert 9 <= chosen.last <= 11


def test_a_range_is_given_once(found: LogInfo) -> None:
    """Offsets and --from cannot be combined."""
    with pytest.raises(typer.BadParameter, match="not both"):
        select_entries(found, 11, "1..2", "5", None, EntryFilter())


@pytest.mark.parametrize("options", [("9..", None), (None, "9" * 5000), (None, "9" * 20)])
def test_what_is_no_offset_is_a_wrong_parameter(
    found: LogInfo, options: tuple[str | None, str | None]
) -> None:
    """A range has two ends, and a number has as many digits as an offset can have."""
    with pytest.raises(typer.BadParameter):
        select_entries(found, 11, options[0], options[1], None, EntryFilter())


def test_filters() -> None:
    """A key is the typed bytes, and an invalid pattern is a wrong parameter."""
    assert parse_filters("", None) == EntryFilter(until=END)
    assert parse_filters("^a", "ü").key == "ü".encode()
    assert parse_filters("", os.fsdecode(b"\xff\x01")).key == b"\xff\x01"
    assert parse_filters("", "").key == b""
    with pytest.raises(typer.BadParameter, match="--namespace is not a regular expression"):
        parse_filters("(", None)


@pytest.mark.parametrize(("last", "offsets"), [(None, [5, 6, 7, 8, 9]), (3, [7, 8, 9])])
def test_what_was_chosen_is_read(found: LogInfo, last: int | None, offsets: list[int]) -> None:
    """All selected entries, or the given number of the last ones, are read in order."""
    with open_selection(
        found, select_entries(found, found.last, "5..9", None, None, EntryFilter()), last
    ) as batches:
        assert [each for batch in batches for each in batch["offset"].to_pylist()] == offsets


def test_what_was_lost_is_told_behind_what_was_read(
    tmp_path: Path, batch: Callable[..., pa.RecordBatch], capsys: pytest.CaptureFixture[str]
) -> None:
    """Entries that a repair lost are skipped, and named on stderr at the end."""
    with CommitLog.open(tmp_path) as log:
        for _ in range(3):
            log.append(batch(2), "r")
    with LogReader(tmp_path) as reader:
        hurt = next(reader.frames(2, 2)).frame
    damage(tmp_path, hurt.payload_byte + 3)
    assert execute(["log", "repair", str(tmp_path), "--yes"]) == 0
    capsys.readouterr()
    log_info = inspect_log(tmp_path)
    with open_selection(
        log_info, select_entries(log_info, 5, None, None, None, EntryFilter())
    ) as batches:
        assert [each for batch in batches for each in batch["offset"].to_pylist()] == [0, 1, 4, 5]
        assert capsys.readouterr().err == ""
    assert "offsets 2..3 were lost" in capsys.readouterr().err
