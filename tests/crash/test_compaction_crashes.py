"""Power cuts and kills at every operation of a compaction and of a retention."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from compaction_tools import Frame, append_segments, keyed
from crash_numbers import tiny
from crash_oracle import open_log
from disks.crashes import crash_states
from disks.simulated import SimulatedDisk

from transporter.audit import AUDIT
from transporter.errors import Corrupt
from transporter.log.compaction import CompactionSettings, compact
from transporter.log.maintenance import (
    MaintenanceRecord,
    extent_of,
    read_maintenance,
    write_maintenance,
)
from transporter.log.reader import LogReader
from transporter.log.retention import RetentionSettings, apply_retention
from transporter.message import Entries
from transporter.offsets.offset_log import OffsetLog, read_state
from transporter.offsets.retention_holds import hold_of, release
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transporter.message import Entry

LOG = Path("/log")
NEEDED = 14
"""The first offset that the route still needs."""
SEGMENTS = [
    [Frame(keyed("a=1", "b=1"), "one", "1"), Frame(keyed("a=2"), "two", "2")],
    [Frame(keyed("a=3", "c=1", "b"), "one", "3"), Frame(keyed("c=2", "d=1"), "two", None)],
    [Frame(keyed("b=2", "d=2"), "two", "4"), Frame(keyed("a=4", "e=1"), "one", "5")],
    [Frame(keyed("a=5", "e=2"), "one", "6")],
    [Frame(keyed("a=6"), "one", "7")],
]


def filled() -> SimulatedDisk:
    """Return a disk with a log of five segments, all durable, and a route that passed three."""
    disk = SimulatedDisk()
    log = open_log(disk, count(1).__next__)
    log._segment_bytes = 1 << 30
    append_segments(log, SEGMENTS)
    with OffsetLog(LOG, "route", disk) as route:
        route.settle(Range(0, NEEDED - 1), log.durable)
    log.close()
    return disk


def entries_on(disk: SimulatedDisk) -> dict[int, Entry]:
    """Open the log as a start does, and return all its entries."""
    log = open_log(disk)
    with LogReader(LOG, disk) as reader:
        return {
            entry.offset: entry
            for batch in reader.read(reader.first_offset(), log.durable)
            for entry in Entries(batch)
        }


def newest(entries: dict[int, Entry]) -> dict[bytes | None, Entry]:
    """Return the last entry of each key."""
    return {entry.message.key: entry for _, entry in sorted(entries.items())}


def compacting(disk: SimulatedDisk) -> None:
    """Compact all entries that the route has passed."""
    settings = CompactionSettings(0.0, "key", 1e10, None)
    compact(LOG, disk, watermark=lambda: NEEDED - 1, settings=settings, now=10**12)


def retaining(disk: SimulatedDisk) -> None:
    """Remove all entries that the route has passed."""
    found = apply_retention(
        LOG, disk, watermark=lambda: NEEDED - 1, settings=RetentionSettings(bytes=0), now=0
    )
    assert len(list(found)) == 4


def states_of(act: Callable[[SimulatedDisk], None], each: int) -> Iterator[SimulatedDisk]:
    """Yield the states after a power cut before every operation of *act*, and behind the last."""
    disk = filled()
    rng = Random(1)
    images = []

    def look(_: str) -> None:
        images.extend(crash_states(disk, rng, each))

    disk.before = look
    act(disk)
    look("")
    assert len(images) > 20
    unique = {image.fingerprint: image for image in images}
    for image in unique.values():
        yield image.disk()


@pytest.mark.parametrize("act", [compacting, retaining])
def test_every_crash_state_opens_and_holds_what_is_live(
    act: Callable[[SimulatedDisk], None], exhaustive: bool
) -> None:
    """Invariants 2 and 11: every crash state opens, and holds the entries still needed."""
    with tiny() as numbers:
        before = entries_on(filled())
        live = {offset: entry for offset, entry in before.items() if offset >= NEEDED}
        done = filled()
        act(done)
        least = set(entries_on(done))
        assert least < set(before)
        seen: set[frozenset[int]] = set()
        for disk in states_of(act, 400 if exhaustive else 8):
            with numbers.aside():
                found = entries_on(disk)
            seen.add(frozenset(found))
            # Each segment is the old one or the new one, or gone, and nothing else.
            assert least <= set(found) <= set(before)
            assert found == {offset: before[offset] for offset in found}
            assert live == {offset: found[offset] for offset in live}
            if act is compacting:
                assert newest(found) == newest(before)
        # Crash states of every stage were among them.
        assert len(seen) == (4 if act is compacting else 5)
        assert {frozenset(before), frozenset(least)} <= seen


def test_positions_survive_every_crash_of_a_compaction() -> None:
    """No reader goes back further, or forward, because of a crash while segments are replaced."""
    with tiny() as numbers:
        for disk in states_of(compacting, 10):
            with numbers.aside():
                assert open_log(disk).positions == {"one": "7", "two": "4"}


def test_a_compaction_that_was_cut_off_is_done_by_the_next(exhaustive: bool) -> None:
    """From every crash state the next compaction ends where an undisturbed one would."""
    with tiny() as numbers:
        done = filled()
        compacting(done)
        wanted = entries_on(done)
        for disk in states_of(compacting, 100 if exhaustive else 5):
            with numbers.aside():
                open_log(disk).close()
                compacting(disk)
                assert entries_on(disk) == wanted


SETTINGS = CompactionSettings(0.0, "key", 1e10, None)


def recording(disk: SimulatedDisk) -> None:
    """Compact, and update the record of the compacted extent, as an engine does."""
    old = MaintenanceRecord(readers={"one": 1})
    write_maintenance(disk, LOG, old)
    compacting(disk)
    write_maintenance(disk, LOG, replace(old, compacted=extent_of(NEEDED - 1, SETTINGS)))


def test_the_record_of_a_compaction_is_whole_and_never_ahead(exhaustive: bool) -> None:
    """A range is recorded as compacted only if it is, and no crash state tears the record."""
    with tiny() as numbers:
        done = filled()
        compacting(done)
        least = set(entries_on(done))
        seen = set()
        for disk in states_of(recording, 100 if exhaustive else 5):
            record = read_maintenance(disk, LOG)
            through = record.compacted_through(SETTINGS) if record else -1
            seen.add((record is None, through))
            assert record is None or record.readers == {"one": 1}
            if through >= 0:
                with numbers.aside():
                    assert set(entries_on(disk)) == least
        assert seen == {(True, -1), (False, -1), (False, NEEDED - 1)}


def releasing(disk: SimulatedDisk) -> None:
    """Let the route release two more entries, and remove those no longer needed."""
    with OffsetLog(LOG, "route", disk) as route:
        assert release(route, NEEDED, NEEDED, "no room") == Range(NEEDED, NEEDED, "released")


def test_a_release_is_never_silent() -> None:
    """In every crash state the route's state and its audit record a range that it passed."""
    with tiny() as numbers:
        seen = set()
        for disk in states_of(releasing, 20):
            with numbers.aside():
                state = read_state(LOG, "route", disk)
            passed = hold_of("route", state).through >= NEEDED
            seen.add(passed)
            assert state.released == ((Range(NEEDED, NEEDED, "released"),) if passed else ())
            if passed:
                audit = disk.content(LOG / AUDIT)
                assert b'"action": "release"' in audit
        assert seen == {True, False}


def test_without_the_sync_between_two_removals_a_crash_would_leave_a_hole() -> None:
    """Control: the suite fails when the rule is removed."""
    with tiny() as numbers:

        def hasty(disk: SimulatedDisk) -> None:
            disk.drops = lambda site: "retention._remove_segment" in site
            retaining(disk)

        broken = 0
        for disk in states_of(hasty, 40):
            with numbers.aside():
                try:
                    found = entries_on(disk)
                except Corrupt:
                    broken += 1
                else:
                    broken += sorted(found) != list(range(min(found), NEEDED + 1))
        assert broken


@pytest.mark.parametrize("call", ["sync ", "sync_directory "])
def test_without_its_syncs_a_replacement_could_be_lost(call: str) -> None:
    """Control: without the file's sync entries are lost, without the directory's only an order."""
    with tiny() as numbers:

        def hasty(disk: SimulatedDisk) -> None:
            disk.drops = lambda site: site.startswith(call) and "segment_rewriter" in site
            compacting(disk)

        before = entries_on(filled())
        broken = 0
        for disk in states_of(hasty, 40):
            with numbers.aside():
                try:
                    found = entries_on(disk)
                except Corrupt:
                    broken += 1
                else:
                    broken += newest(found) != newest(before)
        assert broken if call == "sync " else not broken
