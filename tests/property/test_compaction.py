"""Compaction against a plain model: with any log and routes, no route loses an entry it needs."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
from compaction_tools import Frame, append_segments, compacted, everything, expected, write_log
from hypothesis import given, settings
from hypothesis import strategies as st
from log_tools import small

from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.reader import LogReader
from transporter.log.sealed_segments import sealed_segments
from transporter.message import Message
from transporter.offsets.offset_log import (
    OffsetLog,
    declared_routes,
    delete_route,
    read_state,
    rename_route,
)
from transporter.offsets.retention_holds import hold_of, least_hold
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.message import Entry

MESSAGES = st.builds(
    Message,
    namespace=st.sampled_from(["a", "b", "ab"]),
    data=st.sampled_from([b"", b"x" * 40, None]),
    key=st.sampled_from([None, b"", b"a", b"b", b"c"]),
    op=st.sampled_from(["insert", "update", "delete"]),
)
FRAMES = st.builds(
    Frame,
    st.lists(MESSAGES, min_size=1, max_size=4),
    st.sampled_from(["r", "s"]),
    st.none() | st.sampled_from(["1", "2", "3"]),
)
SEGMENTS = st.lists(st.lists(FRAMES, min_size=1, max_size=4), min_size=2, max_size=5)
FATES = st.sampled_from(["runs", "never acked", "renamed", "replays", "replayed", "deleted", "far"])


@contextmanager
def folder(seen: int, frames: int, rows: int) -> Iterator[Path]:
    """Yield a folder for a log whose compaction handles few keys, frames and rows at once."""
    with (
        pytest.MonkeyPatch.context() as patch,
        small(stride=500),
        tempfile.TemporaryDirectory() as name,
    ):
        patch.setattr("transporter.log.segment_rewriter.STRIDE", 500)
        patch.setattr("transporter.log.segment_rewriter.FRAME_BYTES", 300)
        patch.setattr("transporter.log.compaction.FRAME_BYTES", 300)
        patch.setattr("transporter.log.key_history.SEEN_BYTES", seen)
        patch.setattr("transporter.log.sealed_segments.CHUNK_FRAMES", frames)
        patch.setattr("transporter.log.compaction_targets.MASK_ROWS", rows)
        yield Path(name) / "log"


def live(directory: Path) -> dict[str, dict[int, Entry]]:
    """Return each declared route's live entries: behind its watermark, and of its replay."""
    entries = everything(directory)
    found = {}
    for route in declared_routes(directory):
        state = read_state(directory, route)
        wanted = set(range(state.next_unsettled(), max(entries, default=-1) + 1))
        if state.replay is not None:
            wanted |= set(range(state.replay.next, state.replay.last + 1))
        found[route] = {offset: entries[offset] for offset in sorted(wanted & entries.keys())}
    return found


def newest(entries: dict[int, Entry], keep: str) -> dict[object, Entry]:
    """Return the last entry of each namespace, or of each key."""
    found: dict[object, Entry] = {}
    for offset, entry in sorted(entries.items()):
        message = entry.message
        name = (message.namespace, message.key) if keep == "key" else message.namespace
        found[name] = entries[offset]
    return found


def route_of_fate(directory: Path, number: int, fate: str, at: int, last: int) -> None:
    """Declare a route and settle its offsets according to *fate*."""
    name = f"route-{number}"
    with OffsetLog(directory, name) as offsets:
        if fate != "never acked":
            offsets.settle(Range(0, last if fate == "far" else at), last)
        if fate in ("replays", "replayed"):
            offsets.begin_replay(at // 2, at)
            through = at if fate == "replayed" else max(at // 2, at - 2)
            offsets.advance_replay(through, offsets.state.generation)
    if fate == "renamed":
        rename_route(directory, name, f"new-{number}")
    elif fate == "deleted":
        delete_route(directory, name)


@settings(max_examples=12, deadline=None)
@given(
    segments=SEGMENTS,
    routes=st.lists(st.tuples(FATES, st.integers(0, 60)), min_size=1, max_size=3),
    keep=st.sampled_from(["namespace", "key"]),
    bounds=st.tuples(st.integers(1, 40), st.integers(1, 3), st.integers(1, 40)),
    span=st.tuples(st.integers(0, 60), st.integers(0, 60)),
)
def test_no_route_loses_what_it_needs(
    segments: list[list[Frame]],
    routes: list[tuple[str, int]],
    keep: Literal["namespace", "key"],
    bounds: tuple[int, int, int],
    span: tuple[int, int],
) -> None:
    """Exactly the obsolete entries are dropped, and they are counted (Invariant 11)."""
    with folder(*bounds) as directory:
        last = write_log(directory, segments)
        for number, (fate, at) in enumerate(routes):
            route_of_fate(directory, number, fate, min(at, last), last)
        before, needed = everything(directory), live(directory)
        ends = [each.end for each in sealed_segments(RealFileSystem(), directory)]
        hold = least_hold(directory)
        watermark = hold.through if hold else -1
        report = compacted(directory, watermark, keep)
        after = everything(directory)
        assert live(directory) == needed
        assert newest(after, keep) == newest(before, keep)
        assert set(after) == expected(before, ends, watermark, keep)
        assert after == {offset: before[offset] for offset in after}
        assert report.dropped_entries == len(before) - len(after)
        with LogReader(directory) as reader:
            gone = [each for each in before if each not in after and span[0] <= each <= span[1]]
            assert reader.count_dropped(*span) == len(gone)
        assert compacted(directory, watermark, keep).dropped_entries == 0
        with CommitLog.open(directory) as log:
            assert log.durable == last
        for route in declared_routes(directory):
            assert hold_of(route, read_state(directory, route)).through >= watermark


@settings(max_examples=5, deadline=None)
@given(
    steps=st.lists(st.tuples(SEGMENTS, st.booleans()), min_size=1, max_size=4),
    bounds=st.tuples(st.integers(1, 40), st.integers(1, 3), st.integers(1, 40)),
)
def test_tombstones_never_let_an_older_entry_come_back(
    steps: list[tuple[list[list[Frame]], bool]], bounds: tuple[int, int, int]
) -> None:
    """A key shows its true last entry, or nothing if that was an expired tombstone."""
    with folder(*bounds) as directory:
        truth: dict[int, Entry] = {}
        for segments, graceless in steps:
            with CommitLog.open(directory, clock=lambda: 0, compression=None) as log:
                append_segments(log, segments)
                last = log.durable
            truth |= everything(directory)
            compacted(directory, last, "key", tombstones=0.0 if graceless else 1e10)
            shown = newest(everything(directory), "key")
            for name, entry in newest(truth, "key").items():
                dead = entry.message.op == "delete" or entry.message.data is None
                assert shown.get(name, entry if dead else None) == entry
            spaces = newest(truth, "namespace")
            assert newest(everything(directory), "namespace") == spaces
