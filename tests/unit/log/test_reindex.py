"""The rebuild of missing indexes of sealed segments."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from log_tools import Disk

from transporter.log import index
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.reindex import reindex

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.filesystem import File


@pytest.fixture
def indexed(
    tmp_path: Path, batch: Callable[..., pa.RecordBatch], monkeypatch: pytest.MonkeyPatch
) -> dict[Path, bytes]:
    """Write three segments with an index entry for every few frames, and return the indexes."""
    monkeypatch.setattr(index, "STRIDE", 3000)
    with CommitLog.open(tmp_path, segment_bytes=30_000) as log:
        while len(list(tmp_path.glob("*.log"))) < 4:
            log.append(batch(3), "r", str(log.durable))
    *sealed, _ = sorted(tmp_path.glob("*.index"))
    return {path: path.read_bytes() for path in sealed}


def test_whole_indexes_are_left_as_they_are(tmp_path: Path, indexed: dict[Path, bytes]) -> None:
    """Whole indexes are left as they are."""
    assert min(map(len, indexed.values())) > 5 * 28
    assert reindex(Disk(), tmp_path) == 0
    assert {path: path.read_bytes() for path in indexed} == indexed


def test_missing_cut_and_damaged_indexes_are_as_before(
    tmp_path: Path, indexed: dict[Path, bytes]
) -> None:
    """A missing, cut or damaged index gets the same entries again."""
    gone, cut, damaged = indexed
    gone.unlink()
    cut.write_bytes(indexed[cut][:70])
    content = bytearray(indexed[damaged])
    content[60] ^= 1
    damaged.write_bytes(content)
    assert reindex(Disk(), tmp_path) > 0
    assert {path: path.read_bytes() for path in indexed} == indexed


def test_the_active_segment_is_its_writers(tmp_path: Path, indexed: dict[Path, bytes]) -> None:
    """The active segment's index is not touched."""
    *_, active = sorted(tmp_path.glob("*.index"))
    active.unlink()
    reindex(Disk(), tmp_path)
    assert not active.exists()


class _Full(RealFileSystem):
    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        if path.suffix == ".index" and write:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().open(path, write=write, create=create)


def test_a_full_disk_is_no_reason_to_fail(tmp_path: Path, indexed: dict[Path, bytes]) -> None:
    """An index that cannot be written, which is only a hint, raises no error."""
    for path in indexed:
        path.unlink()
    assert reindex(_Full(), tmp_path) == 0
    assert not any(path.exists() for path in indexed)
