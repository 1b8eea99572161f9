"""Exports to Parquet and JSON lines, complete or absent."""

from __future__ import annotations

import errno
import io
import json
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from log_tools import Disk
from pyarrow import parquet as pq

from transporter.errors import Corrupt, EnvironmentFault
from transporter.log import export as exporting
from transporter.log.commit_log import CommitLog
from transporter.log.export import export, json_lines, parquet_bytes, text_columns
from transporter.log.reader import LogReader
from transporter.message import ENTRY_SCHEMA, Message, messages_to_batch, with_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Make = Callable[..., pa.RecordBatch]

ODD = [
    Message("orders", b'{"a":1}', b"k", headers=(("h", b"1"), ("h", None), ("", b"\xff"))),
    Message("orders", None, None, op="delete", content_type=None, source_id="s"),
    Message("ünïcode", b"\x00\xff\x1b[2J", b"\xff", phase="copy", timestamp=-5),
    Message("audit", b"", b"", timestamp=2**60),
]


def test_parquet_gives_back_every_value(tmp_path: Path) -> None:
    """Nulls, bytes, repeated headers and times come back with their types."""
    with CommitLog.open(tmp_path / "log") as log:
        for _ in range(3):
            log.append(messages_to_batch(ODD), "r")
    with LogReader(tmp_path / "log") as reader:
        export(tmp_path / "x.parquet", parquet_bytes(reader.read(0, 11)))
        expected = pa.Table.from_batches(reader.read(0, 11))
    found = pq.read_table(tmp_path / "x.parquet")
    assert found.schema.equals(ENTRY_SCHEMA)
    assert found.equals(expected)
    assert found.column("offset").to_pylist() == list(range(12))


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([Message("a", b"1", b"k"), Message("a", "ä".encode(), None)], {"key", "data"}),
        ([Message("a", b"1", b"k"), Message("a", b"\xff", b"l")], {"key"}),
        ([Message("a", b"1", b"\xff"), Message("a", None, b"l")], {"data"}),
        (ODD, set()),
        ([], {"key", "data"}),
    ],
)
def test_columns_are_text_where_all_of_them_is(
    tmp_path: Path, messages: list[Message], text: set[str]
) -> None:
    """A single entry that is not UTF-8 makes its column bytes, in every row."""
    batches = [with_offsets(messages_to_batch([each]), row, 0) for row, each in enumerate(messages)]
    batches = batches or [with_offsets(messages_to_batch([]), 0, 0)]
    assert text_columns(batches) == text
    export(tmp_path / "x.parquet", parquet_bytes(iter(batches), text_columns(batches)))
    found = pq.read_table(tmp_path / "x.parquet")
    strings = {name for name in ("key", "data") if found.schema.field(name).type == pa.string()}
    assert strings == text
    assert found.cast(ENTRY_SCHEMA).equals(pa.Table.from_batches(batches))


def test_an_export_of_nothing_is_a_parquet_file_too(tmp_path: Path) -> None:
    """An export without entries is a file with the schema and no rows."""
    export(tmp_path / "x.parquet", parquet_bytes(iter([with_offsets(messages_to_batch([]), 0, 0)])))
    found = pq.read_table(tmp_path / "x.parquet")
    assert (found.schema.equals(ENTRY_SCHEMA), found.num_rows) == (True, 0)


def test_small_batches_share_a_row_group(monkeypatch: pytest.MonkeyPatch, batch: Make) -> None:
    """Row groups are as large as allowed, and small appends share one."""
    monkeypatch.setattr(exporting, "ROW_GROUP_BYTES", 10_000)
    batches = [with_offsets(batch(3), at, 0) for at in range(0, 900, 3)]
    found = pq.ParquetFile(io.BytesIO(b"".join(parquet_bytes(batches)))).metadata
    assert found.num_rows == 900
    expected = sum(each.nbytes for each in batches) / 10_000
    assert expected - 1 <= found.num_row_groups <= expected + 1


def test_memory_stays_flat(monkeypatch: pytest.MonkeyPatch, batch: Make) -> None:
    """Arrow holds about one row group for ten or for a hundred (Invariant 17)."""
    monkeypatch.setattr(exporting, "ROW_GROUP_BYTES", 1 << 20)

    messages, read = batch(100, size=1000), [0]

    def many() -> Iterator[pa.RecordBatch]:
        for at in range(1000):
            read[0] += 1
            yield with_offsets(messages, at * 100, 0)

    before = pa.total_allocated_bytes()
    held = [(read[0], pa.total_allocated_bytes() - before) for _ in parquet_bytes(many())]
    assert max(size for _, size in held) < 4 << 20
    # Finished parts are passed on while the rest is read.
    assert held[0][0] < 20
    assert max(after - seen for (seen, _), (after, _) in pairwise(held)) < 20


def test_json_lines_are_what_describes_an_entry() -> None:
    """Each entry becomes one line of JSON, in order."""
    batches = [with_offsets(messages_to_batch(ODD), at, 7) for at in (0, 4)]
    lines = b"".join(json_lines(batches, lambda e: [e.offset, e.logged_at, e.message.op]))
    assert [json.loads(line) for line in lines.splitlines()] == [
        [at, 7, op] for at, op in enumerate(["insert", "delete", "insert", "insert"] * 2)
    ]


def test_an_export_that_fails_changes_nothing(tmp_path: Path) -> None:
    """An export that meets damage leaves the old file and no temporary one."""

    def parts() -> Iterator[bytes]:
        yield b"new"
        raise Corrupt("damaged")

    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(Corrupt):
        export(path, parts())
    assert [each.name for each in tmp_path.iterdir()] == ["x"]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("call", ["pwrite", "sync", "rename", "sync_directory"])
def test_a_disk_that_fails_is_named(tmp_path: Path, call: str) -> None:
    """A disk error names the file and leaves no temporary one."""
    disk = Disk()
    disk.failing[call] = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(EnvironmentFault, match=r"x: No space left on device"):
        export(tmp_path / "x", [b"a"], disk)
    assert [each.name for each in tmp_path.iterdir() if each.name != "x"] == []


def test_an_export_is_durable_before_it_takes_the_files_place(tmp_path: Path) -> None:
    """An export is written, synced and renamed, and the rename is synced, in this order."""
    disk = Disk()
    export(tmp_path / "x", [b"a", b"b"], disk)
    names = [name for name, _ in disk.calls if name not in {"truncate", "close"}]
    renamed = ["rename", "sync_directory"]
    assert names == ["pwrite", "pwrite", "sync", *renamed, *renamed]
    assert (tmp_path / "x").read_bytes() == b"ab"


@pytest.mark.parametrize("made", ["file", "link"])
def test_an_export_writes_into_nothing_that_others_have_made(tmp_path: Path, made: str) -> None:
    """A temporary file that another user has created beforehand is not written to."""
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"")
    trap = tmp_path / "x.tmp"
    if made == "link":
        trap.symlink_to(theirs)
    else:
        trap.hardlink_to(theirs)
    seen: list[int] = []

    def parts() -> Iterator[bytes]:
        yield b"secret"
        (private,) = (each for each in tmp_path.iterdir() if each.is_dir())
        seen.append(private.stat().st_mode & 0o777)

    export(tmp_path / "x", parts())
    assert (theirs.read_bytes(), seen) == (b"", [0o700])
    assert (tmp_path / "x").read_bytes() == b"secret"
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600
