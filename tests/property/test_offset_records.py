"""An offset log's file under every kind of damage, against the list of written records."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transporter.errors import Corrupt
from transporter.offsets import offset_log as module
from transporter.offsets import record as records
from transporter.offsets import state as states
from transporter.offsets.offset_log import NAMES, OffsetLog, read_state, route_folder
from transporter.offsets.record import Record, decode_records
from transporter.offsets.state import Range, RouteState

COUNTS = st.integers(1, 12)


def turn(number: int, count: int) -> list[Record]:
    """Return the records of a turn: a snapshot, then events of different lengths."""
    # As JSON returns it: lists in the place of tuples.
    state = json.loads(json.dumps(states.snapshot_event(RouteState(watermark=number))))
    snapshot = Record(number, 0, state)
    events = [
        Record(number, n, states.settled_event(Range(n, n), {"x" * n: n})) for n in range(1, count)
    ]
    return [snapshot, *events]


def joined(found: list[Record]) -> bytes:
    """Return records one behind the other."""
    return b"".join(record.encode() for record in found)


def read(data: bytes) -> list[Record]:
    """Return the records at the start of *data*."""
    return list(decode_records(data, "f"))


@given(COUNTS, st.data())
@settings(max_examples=200)
def test_a_truncated_file_gives_a_prefix(count: int, data: st.DataObject) -> None:
    """Wherever the file ends, exactly the whole records before that are read."""
    written = turn(3, count)
    whole = joined(written)
    cut = data.draw(st.integers(0, len(whole)))
    ends = [len(joined(written[: n + 1])) for n in range(count)]
    expected = written[: sum(end <= cut for end in ends)]
    got = read(whole[:cut])
    # A record whose padding alone is missing is whole.
    assert got in (expected, written[: len(expected) + 1])
    if got != expected:
        assert ends[len(expected)] - cut < records.ALIGNMENT


@given(COUNTS, st.data())
@settings(max_examples=300)
def test_a_changed_byte_gives_a_prefix(count: int, data: st.DataObject) -> None:
    """Whatever byte changes, the records before it are read as they were written."""
    written = turn(3, count)
    whole = bytearray(joined(written))
    byte = data.draw(st.integers(0, len(whole) - 1))
    whole[byte] ^= data.draw(st.integers(1, 255))
    got = read(bytes(whole))
    assert got == written[: len(got)]
    untouched = sum(len(joined(written[: n + 1])) <= byte for n in range(count))
    assert len(got) >= untouched


@given(COUNTS, COUNTS)
@settings(max_examples=100)
def test_an_older_turn_behind_a_newer_one_is_not_read(older: int, newer: int) -> None:
    """A reused file holds the rest of its former turn, which is never read on."""
    old, new = joined(turn(3, older)), joined(turn(5, newer))
    assert read(new + old[len(new) :]) == turn(5, newer)


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("settle"), st.integers(0, 40), st.integers(0, 5)),
        st.tuples(st.just("sync"), st.just(0), st.just(0)),
        st.tuples(st.just("reopen"), st.just(0), st.just(0)),
        st.tuples(st.just("kill"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(ACTS, st.integers(512, 2048))
@settings(max_examples=60)
def test_no_kill_or_restart_loses_an_event(
    acts: list[tuple[str, int, int]], file_bytes: int
) -> None:
    """The state stays the same through any turns, restarts and kills (Invariant 6)."""
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as folder,
    ):
        patch.setattr(os, "fdatasync", lambda _: None)
        patch.setattr(module, "FILE_BYTES", file_bytes)
        offsets = OffsetLog(Path(folder), "r")
        for act, first, length in acts:
            before = offsets.state
            match act:
                case "settle":
                    before = offsets.settle(Range(first, first + length), 100, {"n": first})
                case "sync":
                    offsets.sync()
                case "reopen":
                    offsets.close()
                    offsets = OffsetLog(Path(folder), "r")
                case "kill":
                    assert offsets._file is not None
                    offsets._file.close()
                    offsets = OffsetLog(Path(folder), "r")
            assert offsets.state == before
            assert read_state(Path(folder), "r") == before
        offsets.close()


@given(st.integers(1, 30), st.data())
@settings(max_examples=60)
def test_damage_never_makes_a_route_forget_what_is_synced_elsewhere(
    count: int, data: st.DataObject
) -> None:
    """Damage to one file moves a route only back, or is refused without a snapshot."""
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as folder,
    ):
        patch.setattr(os, "fdatasync", lambda _: None)
        patch.setattr(module, "FILE_BYTES", 1024)
        with OffsetLog(Path(folder), "r") as offsets:
            for offset in range(count):
                offsets.settle(Range(offset, offset), 100)
        name = data.draw(st.sampled_from(NAMES))
        path = route_folder(Path(folder), "r") / name
        damaged = bytearray(path.read_bytes())
        byte = data.draw(st.integers(0, len(damaged) - 1))
        damaged[byte] ^= data.draw(st.integers(1, 255))
        path.write_bytes(damaged)
        try:
            offsets = OffsetLog(Path(folder), "r")
        except Corrupt:
            others = [each for each in NAMES if each != name]
            assert not any(read((path.parent / each).read_bytes()) for each in others)
            assert not read(bytes(damaged))
            return
        with offsets:
            state = offsets.state
            assert -1 <= state.watermark < count
            assert state.above == ()
            assert offsets.settle(Range(0, count - 1), 100).watermark == count - 1
