"""A data folder to which each slice is added once, wherever a writer is killed."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from transporter_adaptors.spark import folder as module
from transporter_adaptors.spark.folder import DataFolder
from transporter_adaptors.spark.writer import SparkWriter, SparkWriterConfig

from transporter.adaptor import DataFrameSlice, WriterContext
from transporter.errors import RouteFault

if TYPE_CHECKING:
    from collections.abc import Callable

CONTEXT = WriterContext(log_id="0123456789abcdef", route="daily", epoch=3)
HOME = Path("_transporter", "01234567", "daily")
PARTS = ("part-0.parquet", "region=EU/part-1.parquet", "region=EU/day=1/part-2.parquet")


class Killed(BaseException):
    """The end of the process between two system calls."""


@pytest.fixture
def data(tmp_path: Path) -> DataFolder:
    """Return a new data folder, opened."""
    made = DataFolder(tmp_path / "daily", CONTEXT)
    assert made.recover() is None
    return made


def written(
    data: DataFolder, last: int, generation: int = 0, parts: tuple[str, ...] = PARTS
) -> Path:
    """Write a slice aside like Spark, with the files that it leaves beside the data."""
    aside = data.make_aside(generation, last)
    for part in (
        *parts,
        "_temporary/0/half.parquet",
        "_SUCCESS",
        "._SUCCESS.crc",
        "region=EU/.part-1.parquet.crc",
    ):
        (aside / part).parent.mkdir(parents=True, exist_ok=True)
        (aside / part).write_text(f"{part} of {last}")
    return aside


def found(data: DataFolder) -> list[str]:
    """Return the files that readers see, sorted, all without a leading dot or _."""
    return sorted(
        f"{file.parent.relative_to(data.path)}/{file.read_text()}"
        for file in data.path.rglob("*")
        if file.is_file()
        and not any(part.startswith(("_", ".")) for part in file.relative_to(data.path).parts)
    )


def expected(*lasts: int) -> list[str]:
    """Return the expected result of :func:`found` for these slices, each once."""
    return sorted(f"{Path(part).parent}/{part} of {last}" for last in lasts for part in PARTS)


def left_aside(data: DataFolder) -> list[str]:
    """Return the names in the writer's own folder, without its records."""
    return sorted(each.name for each in (data.path / HOME).iterdir() if each.suffix != ".json")


def test_a_slice_is_committed(data: DataFolder) -> None:
    """A slice's files are in their places, also in nested folders, under the slice's name."""
    data.commit(written(data, 9), 0, 9)
    assert found(data) == expected(9)
    assert left_aside(data) == []
    assert sorted(each.name for each in data.path.glob("*.parquet")) == [
        "slice-daily-01234567-0-00000000000000000009-part-0.parquet"
    ]
    stored = data.recover()
    assert stored is not None
    assert (stored.offset, stored.generation, stored.epoch) == (9, 0, 3)


def test_a_slice_that_was_not_committed_is_taken_back(data: DataFolder) -> None:
    """Files aside without a record are removed, and never seen."""
    data.commit(written(data, 9), 0, 9)
    written(data, 19)
    stored = data.recover()
    assert stored is not None
    assert (stored.offset, found(data), left_aside(data)) == (9, expected(9), [])


def calls_of(commit: Callable[[], None], ends_before: int) -> int:
    """Run *commit*, end it before its call number *ends_before*, and return the number made."""
    count = 0

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            nonlocal count
            if count == ends_before:
                raise Killed
            count += 1
            return real(*arguments, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (os, "fsync"),
            (os, "mkdir"),
            (os, "rename"),
            (os, "rmdir"),
            (os, "unlink"),
            (Path, "write_text"),
        ):
            patch.setattr(owner, name, counted(getattr(owner, name)))
        with suppress(Killed):
            commit()
    return count


def test_a_crash_anywhere_leaves_all_or_nothing(tmp_path: Path) -> None:
    """Wherever a commit ends, the next writer finds the slice whole or not at all."""
    seen = set()
    for crash in range(1000):
        data = DataFolder(tmp_path / str(crash), CONTEXT)
        data.recover()
        data.commit(written(data, 9), 0, 9)
        aside = written(data, 19)
        done = calls_of(lambda d=data, a=aside: d.commit(a, 0, 19), crash)
        again = DataFolder(data.path, replace(CONTEXT, epoch=4))
        # The next writer may be ended, too, during recovery.
        calls_of(again.recover, crash % 7)
        stored = again.recover()
        assert stored is not None
        whole = (9, 19) if stored.offset == 19 else (9,)
        assert found(again) == expected(*whole), crash
        assert left_aside(again) in ([], ["committed.json.new"]), crash
        seen.add(stored.offset)
        again.commit(written(again, 29), 0, 29)
        assert found(again) == expected(*whole, 29)
        if done < crash:
            break
    else:
        raise AssertionError("the commit never came to its end")
    assert seen == {9, 19}


def test_files_are_synced_before_the_record(
    data: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files aside, and the record's draft, are synced before the rename that commits."""
    events: list[str] = []
    fsync, rename = os.fsync, os.rename
    opened: dict[int, str] = {}
    real_open = os.open

    def noted(path: str, *more: int, **named: int) -> int:
        descriptor = real_open(path, *more, **named)
        opened[descriptor] = Path(path).name
        return descriptor

    monkeypatch.setattr(os, "open", noted)
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append(f"sync {opened[fd]}"), fsync(fd))[1])
    monkeypatch.setattr(
        os, "rename", lambda a, b: (events.append(f"rename {Path(b).name}"), rename(a, b))[1]
    )
    aside = written(data, 9)
    data.commit(aside, 0, 9)
    commit = events.index("rename committed.json")
    assert {*events[:commit]} >= {
        f"sync {aside.name}",
        "sync part-0.parquet",
        "sync part-1.parquet",
        "sync part-2.parquet",
        "sync region=EU",
        "sync day=1",
        "sync committed.json.new",
    }
    # The record is synced before a file leaves its place aside, and the target folders after that.
    assert events[commit + 1] == "sync daily"
    assert {*events[commit + 2 :]} >= {"sync daily", "sync region=EU", "sync day=1"}


def test_new_folders_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of folders that recovery makes are synced up to the first existing folder."""
    synced: list[Path] = []
    monkeypatch.setattr(module, "_sync", synced.append)
    DataFolder(tmp_path / "a" / "daily", CONTEXT).recover()
    path = tmp_path / "a" / "daily"
    assert {tmp_path, tmp_path / "a", path, path / "_transporter"} <= {*synced}


def test_an_old_job_cannot_write_into_a_slice(data: DataFolder) -> None:
    """Late files of an abandoned attempt are not committed, and are removed with the next slice."""
    old, new = written(data, 9), written(data, 9)
    assert old != new
    (old / "late.parquet").write_text("late")
    data.commit(new, 0, 9)
    assert (found(data), left_aside(data)) == (expected(9), [])
    for last, late in ((19, "late.parquet"), (29, "_temporary/0/task_1/late.parquet")):
        # The task makes its folders again.
        (old / late).parent.mkdir(parents=True)
        (old / late).write_text("late")
        data.commit(written(data, last), 0, last)
        assert left_aside(data) == []
    assert found(data) == expected(9, 19, 29)


def test_a_late_task_is_no_obstacle(data: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that come while an abandoned attempt is removed fail neither a start nor a slice."""
    written(data, 9)

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.ENOTEMPTY, "a task has just made another file")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refused)
        assert data.recover() is None
    assert len(left_aside(data)) == 1
    data.commit(written(data, 19), 0, 19)
    assert (found(data), left_aside(data)) == (expected(19), [])


def test_a_later_epoch_fences(data: DataFolder) -> None:
    """A writer of an engine that was replaced can neither open nor commit."""
    later = DataFolder(data.path, replace(CONTEXT, epoch=4))
    aside = written(data, 9)
    later.commit(written(later, 9), 0, 9)
    with pytest.raises(RouteFault, match="fenced by epoch 4"):
        data.commit(aside, 0, 9)
    with pytest.raises(RouteFault, match="this writer has epoch 3"):
        data.recover()
    assert found(data) == expected(9)


def test_another_log_is_another_writer(data: DataFolder) -> None:
    """Routes of the same name in two logs share the folder, and neither changes the other's."""
    other = DataFolder(data.path, replace(CONTEXT, log_id="fedcba9876543210", epoch=1))
    aside = written(data, 9)
    assert other.recover() is None
    other.commit(written(other, 5), 0, 5)
    data.commit(aside, 0, 9)
    assert found(data) == expected(5, 9)
    stored = other.recover()
    assert stored is not None
    assert stored.offset == 5


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"stored": {}, "aside": "x"}', '{"stored": 5, "aside": "x"}']
)
def test_a_record_that_cannot_be_read_is_refused(data: DataFolder, content: str) -> None:
    """An unreadable record stops the route, with the remedy."""
    (data.path / HOME / "committed.json").write_text(content)
    with pytest.raises(RouteFault, match=r"committed\.json cannot be read.*move the folder away"):
        data.recover()


def test_parked_retries_have_a_record_of_their_own(data: DataFolder) -> None:
    """A retried parked entry does not change the route's stored offset."""
    data.commit(written(data, 9), 0, 9)
    data.commit(written(data, 4, generation=-1), -1, 4)
    stored = data.recover()
    assert stored is not None
    assert (stored.offset, stored.generation) == (9, 0)
    assert found(data) == expected(4, 9)
    told = json.loads((data.path / HOME / "retried.json").read_text())
    assert (told["stored"]["offset"], told["stored"]["generation"]) == (4, -1)


def test_a_replay_adds_files_of_its_own(data: DataFolder) -> None:
    """The same slice of a later generation replaces nothing."""
    data.commit(written(data, 9), 0, 9)
    data.commit(written(data, 9, generation=1), 1, 9)
    assert found(data) == expected(9, 9)


def test_a_slice_without_files_is_committed(data: DataFolder) -> None:
    """A query that drops every entry still moves the route on."""
    data.commit(written(data, 9, parts=()), 0, 9)
    stored = data.recover()
    assert stored is not None
    assert (stored.offset, found(data), left_aside(data)) == (9, [], [])


@pytest.mark.parametrize(("run", "through"), [("mine", 14), ("another", -1), ("", -1)])
def test_only_a_commit_of_this_run_stands_for_one_whose_answer_was_lost(
    tmp_path: Path, run: str, through: int
) -> None:
    """A commit of another run of the log with the same offsets does not count for this slice."""
    context = replace(CONTEXT, run="mine")
    writer = SparkWriter(SparkWriterConfig(path=str(tmp_path / "daily")))
    writer.open(context)
    writer._committed = replace(context, run=run).stored(0, 14)
    assert (
        writer._written_offset(DataFrameSlice(10, 14, 0), DataFolder(tmp_path, context)) == through
    )
