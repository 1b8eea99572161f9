"""Small files of a log written by another program, with a valid checksum and bad content."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from crc32c import crc32c

from transporter.errors import Corrupt
from transporter.log.compaction import CompactionSettings
from transporter.log.filesystem import RealFileSystem
from transporter.log.maintenance import (
    MAINTENANCE,
    CompactionRules,
    MaintenanceRecord,
    extent_of,
    read_maintenance,
    write_maintenance,
)
from transporter.log.meta import META, Meta, read_meta

if TYPE_CHECKING:
    from pathlib import Path

RECORD = {
    "format": 1,
    "rules": [60, "namespace", 3600.0, "lz4"],
    "readers": {"shop": 4},
    "compacted": [9, 60.0, "namespace", 3600.0],
}


def put(path: Path, fields: Any) -> None:
    """Write *fields* as the log does: one line of JSON, and one with its checksum."""
    body = json.dumps(fields).encode()
    path.write_bytes(b"%s\n%08x\n" % (body, crc32c(body)))


@pytest.mark.parametrize(
    "change",
    [
        {"rules": ["60", "namespace", 0, None]},
        {"rules": [60, 3, 0, None]},
        {"rules": [60, "namespace", 0, {}]},
        {"rules": [60]},
        {"readers": {"shop": "4"}},
        {"readers": {"shop": 4.5}},
        {"readers": ["shop"]},
        {"compacted": ["9", 60, "namespace", 0]},
        {"compacted": [9, [], "namespace", 0]},
        {"compacted": [9, 60, None, 0]},
        {"compacted": 7},
    ],
    ids=repr,
)
def test_a_forged_maintenance_record_is_corrupt(tmp_path: Path, change: dict[str, Any]) -> None:
    """A maintenance record with values of a wrong kind is refused as a whole."""
    put(tmp_path / MAINTENANCE, RECORD)
    assert read_maintenance(RealFileSystem(), tmp_path) is not None
    put(tmp_path / MAINTENANCE, RECORD | change)
    with pytest.raises(Corrupt, match="remove the file"):
        read_maintenance(RealFileSystem(), tmp_path)


def test_what_an_engine_writes_is_read_again(tmp_path: Path) -> None:
    """Every kind of value that an engine writes passes the check."""
    asked = CompactionSettings(after=1.5, keep="key", tombstones=10)
    for record in (
        MaintenanceRecord(),
        MaintenanceRecord(CompactionRules(None, "key", 0, None), {"a": -1}, extent_of(7, asked)),
    ):
        write_maintenance(RealFileSystem(), tmp_path, record)
        assert read_maintenance(RealFileSystem(), tmp_path) == record


@pytest.mark.parametrize("runs", [[["1", "a", 0]], [[1, 2, 0]], [[1, "a", None]], [[1]], 7])
def test_forged_runs_are_corrupt(tmp_path: Path, runs: Any) -> None:
    """Forged runs, which would prove a sink's stored offset, are corrupt."""
    log_id = "6e7d1a3a-5a0e-4a52-9d35-6a4c1e0f9b11"
    fields = json.loads(Meta(log_id, 1, 0).encode().partition(b"\n")[0])
    put(tmp_path / META, fields)
    assert read_meta(RealFileSystem(), tmp_path) is not None
    put(tmp_path / META, fields | {"runs": runs})
    with pytest.raises(Corrupt, match="meta file cannot be read"):
        read_meta(RealFileSystem(), tmp_path)
