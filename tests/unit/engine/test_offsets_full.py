"""A route whose offset log finds no room: visible back-pressure that ends by itself."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from disks.faulty import Fault, FaultyDisk
from engine_tools import Events, make_pipeline, offsets, running, until

from transporter.log.filesystem import RealFileSystem
from transporter.offsets.offset_log import read_state

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_route_without_room_for_its_offsets_waits_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room nothing more is delivered, and then everything, once (Invariant 14)."""
    disk = FaultyDisk(RealFileSystem())
    monkeypatch.setattr("transporter.offsets.offset_log.RealFileSystem", lambda: disk)
    events = Events()
    lines = [f"n {number}" for number in range(12)]
    out = {"slice_rows": 3, "writer": {"pause_at": 4}}
    (tmp_path / "out.paused").touch()
    with running(make_pipeline(tmp_path, lines, end=False, out=out), events=events) as engine:
        until((tmp_path / "out.waiting").exists)
        disk.strike(Fault(1, errno.ENOSPC, frozenset({"pwrite"}), 0.5, lasts=True))
        (tmp_path / "out.paused").unlink()
        told = events.await_count("route-retrying", 3)
        assert "No space left" in told["problem"]
        assert offsets(tmp_path / "out.jsonl") == [0, 1, 2, 3, 4, 5]
        assert read_state(tmp_path / "log", "out").watermark == 2
        # Retention, which makes room, relies on durable offsets only.
        assert engine._holds.least_hold().through == 2
        disk.heal()
        until(lambda: engine.status().routes[0].lag == 0)
        assert not engine.wait(0)
    assert offsets(tmp_path / "out.jsonl") == list(range(12))
    assert read_state(tmp_path / "log", "out").watermark == 11


def test_a_start_reads_each_offset_log_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start folds the offset log of each route once, also of one missing in the file."""
    from transporter.offsets import offset_log  # noqa: PLC0415

    with running(make_pipeline(tmp_path, ["n 0"], a={}, b={}, c={})) as engine:
        until(lambda: engine.wait(0.02))
    folded: list[str] = []
    read = offset_log._fold_records

    def counted(data: bytes, file: str) -> object:
        folded.append(file)
        return read(data, file)

    monkeypatch.setattr(offset_log, "_fold_records", counted)
    with running(make_pipeline(tmp_path, [], a={}, b={})) as engine:
        until(lambda: engine.wait(0.02))
        assert engine._holds.least_hold().through == 0
    assert len(folded) == 3
