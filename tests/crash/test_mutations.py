"""Mutation controls: without any one of the log's rules, a simulated power cut fails the check.

A life is checked twice: unchanged it must pass, and with one rule removed it must fail.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from crash_hunt import Plan, Red, hunt
from crash_numbers import tiny
from crash_world import Killed, World, live
from disks.crashes import crash_states
from disks.simulated import SimulatedDisk

from transporter.engine.routing.parking import Parking
from transporter.errors import Corrupt
from transporter.log import recovery
from transporter.log.active_segment import ActiveSegment
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import TEMPORARY, open_file, sync, sync_directory
from transporter.log.meta import Meta, read_meta, write_meta
from transporter.message import with_offsets
from transporter.offsets.parked import ParkedEntry, ParkedStore, ParkReason
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from transporter.log.filesystem import FileSystem

PLAN = Plan(acts=30, states=8, nested=4, nested_every=40, whole_every=3, damage_every=40)
SURVEYED = 60
EXHAUSTIVELY_SURVEYED = 400
"""Lives that reveal the existing syncs."""
BUDGET = 12
"""Most lives checked until one must fail."""
SAMPLE = 2
"""Call sites, and rules, that an ordinary run takes."""


@cache
def sites(lives: int) -> dict[str, tuple[int, ...]]:
    """Return every call site of a sync that so many lives reach, with the lives that do."""
    reached: dict[str, list[int]] = {}
    for seed in range(lives):
        with tiny() as numbers:
            world = World(seed, numbers)
            world.disk.sites = set()
            live(world, PLAN.acts)
            for site in sorted(world.disk.sites):
                reached.setdefault(site, []).append(seed)
    return {site: tuple(seeds) for site, seeds in sorted(reached.items())}


class Dropping:
    """Drops the syncs of some call sites in a life, which is checked from the first one on."""

    def __init__(self, *sites: str) -> None:
        self.sites, self.dropped = sites, False

    def __call__(self, world: World) -> None:
        """Attach to *world*."""
        look = world.watch
        self.dropped = False
        world.disk.drops = self.drops
        world.watch = lambda world, what: look(world, what) if self.dropped else None

    def drops(self, site: str) -> bool:
        """Return true if this sync does nothing."""
        here = site in self.sites
        self.dropped = self.dropped or here
        return here


def is_red(seed: int, prepare: Callable[[World], None] = lambda _: None, plan: Plan = PLAN) -> bool:
    """Return true if a life breaks a promise."""
    try:
        hunt(seed, plan, prepare)
    except Red:
        return True
    return False


def makes_a_folder(site: str) -> bool:
    """Return true if the earlier opening of a route's offset log makes up for *site*.

    A folder for parked entries that a killed process created is synced there already.
    """
    return site.startswith("sync_directory filesystem.make_directory") and "parked.park" in site


def replaces_a_copy(site: str) -> bool:
    """Return true if *site* makes a copy of a parked entry durable that replaces an earlier one.

    The entry has failed again. After a power cut the earlier copy does as well.
    """
    return site.startswith("sync_directory") and site.endswith("parked.park_all < parked.park")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Take every call site and every rule when every case is wanted, or else some of them."""
    exhaustive = metafunc.config.getoption("--exhaustive")
    if "site" in metafunc.fixturenames:
        lives = EXHAUSTIVELY_SURVEYED if exhaustive else SURVEYED
        found = sites(lives)
        nets = (makes_a_folder, replaces_a_copy)
        needed = [(site, found[site]) for site in found if not any(net(site) for net in nets)]
        chosen = needed if exhaustive else _some(needed)
        metafunc.parametrize(("site", "lives"), chosen, ids=[site for site, _ in chosen])
    if "without" in metafunc.fixturenames:
        rules = RULES if exhaustive else _some(RULES[1:])  # the first takes minutes
        metafunc.parametrize("without", rules, ids=lambda rule: rule.__name__)


def _some(cases: Sequence[Any]) -> list[Any]:
    return Random(SAMPLE).sample(cases, SAMPLE)


def test_every_sync_is_needed(site: str, lives: Sequence[int]) -> None:
    """Invariants 1, 2, 3 and 13: with any one sync left out, a promise is broken."""
    shown = (seed for seed in lives[:BUDGET] if is_red(seed, Dropping(site)))
    found = next(shown, None)
    assert found is not None, f"nothing goes wrong without '{site}'"
    assert not is_red(found)


@pytest.mark.parametrize("dropped", [False, True])
def test_a_folder_that_a_killed_process_left_is_synced_before_it_is_used(
    dropped: bool, batch: Callable[..., pa.RecordBatch]
) -> None:
    """Invariant 15: a store alone keeps its parked entries, unless that sync is left out."""
    disk, folder = SimulatedDisk(), Path("/r")
    disk.create_directory(folder)
    disk.sync_directory(folder.parent)
    entry = ParkedEntry(0, with_offsets(batch(1), 0, 1), ParkReason("no", 1, 1))
    disk.before = dies_before_the_folder_is_synced(disk, folder)
    with suppress(Killed):
        ParkedStore(folder, disk).park(entry)
    disk.before = lambda _: None
    disk.drops = lambda site: dropped and makes_a_folder(site)
    ParkedStore(folder, disk).park(entry)
    nothing_else = next(crash_states(disk, Random(0), 1))
    kept = ParkedStore(folder, nothing_else.disk()).offsets()
    assert kept == ([] if dropped else [0])


def dies_before_the_folder_is_synced(disk: SimulatedDisk, folder: Path) -> Callable[[str], None]:
    """Return a watch that ends the process as soon as the folder of parked entries is there."""

    def watch(what: str) -> None:
        if what.startswith("sync_directory") and disk.names(folder):
            raise Killed(what)

    return watch


def no_header_checksum(patch: pytest.MonkeyPatch) -> None:
    """Accept any block as intact."""
    patch.setattr("transporter.log.format._matches_checksum", lambda _: True)


def no_payload_checksum(patch: pytest.MonkeyPatch) -> None:
    """Accept frames in recovery whatever their bytes."""
    patch.setattr("transporter.log.segment.Segment.is_intact", lambda *_: True)


def no_record_checksum(patch: pytest.MonkeyPatch) -> None:
    """Accept any offset record as intact."""
    patch.setattr("transporter.offsets.record.crc32c", lambda *_: 0)


def rename_before_sync(patch: pytest.MonkeyPatch) -> None:
    """Give a file its name before its bytes are durable."""

    def replace_hastily(files: FileSystem, path: Path, parts: Iterable[bytes]) -> None:
        temporary = path.with_name(path.name + TEMPORARY)
        with open_file(files, temporary, write=True, create=True) as file:
            file.truncate(0)
            byte = 0
            for part in parts:
                file.pwrite(part, byte)
                byte += len(part)
            files.rename(temporary, path)
            sync(file)
        sync_directory(files, path.parent)

    def replace_all_hastily(files: FileSystem, folder: Path, contents: Mapping[str, bytes]) -> None:
        for name, data in contents.items():
            replace_hastily(files, folder / name, [data])

    for module in ("log.meta", "log.segment"):
        patch.setattr(f"transporter.{module}.replace_durably", replace_hastily)
    patch.setattr("transporter.offsets.parked.replace_all_durably", replace_all_hastily)


def no_floor(patch: pytest.MonkeyPatch) -> None:
    """Cut all damage as if it were torn."""

    def cut(files: Any, segment: Any, proved: int, clean: Any) -> Any:
        with suppress(Corrupt):
            return recovery.survey(files, segment, proved, clean)
        walk, behind = recovery._frames_and_cut(segment, recovery.walk_tail(files, segment))
        return recovery._survey_above(
            files, segment, walk.last_offset(segment), walk, behind, clean
        )

    patch.setattr("transporter.log.opening.survey", cut)


def new_segment_before_the_old_is_synced(patch: pytest.MonkeyPatch) -> None:
    """Roll in the wrong order, and publish the old segment's entries only when they are durable."""
    roll = CommitLog._roll

    def roll_hastily(log: Any) -> None:
        sealed = log._active
        sealed.sync = sealed.close = lambda: None
        log._publish = lambda _: None
        roll(log)
        del sealed.sync, sealed.close, log._publish
        ActiveSegment.sync(sealed)
        sealed.close()
        log._publish(sealed.last)

    patch.setattr(CommitLog, "_roll", roll_hastily)


def no_offset_skip(patch: pytest.MonkeyPatch) -> None:
    """Assign the offsets of cut frames again."""

    def forget(*arguments: Any) -> Any:
        found = recovery.survey(*arguments)
        return replace(found, next_offset=found.last + 1)

    patch.setattr("transporter.log.opening.survey", forget)


def unsynced_to_routes(patch: pytest.MonkeyPatch) -> None:
    """Let routes see entries before the sync."""
    sync_now = CommitLog._sync_now

    def publish_first(log: CommitLog) -> None:
        log._publish(log._active.last)
        sync_now(log)

    patch.setattr(CommitLog, "_sync_now", publish_first)


def parked_record_first(patch: pytest.MonkeyPatch) -> None:
    """Record an entry as parked before there is a copy."""
    keep = Parking._park_all

    def record_first(parking: Parking, entry: Any, reason: Any) -> None:
        offset = entry.column("offset")[0].as_py()
        parking._offsets.settle(Range(offset, offset, "parked"), parking._log.durable)
        keep(parking, entry, reason)

    patch.setattr(Parking, "_park_all", record_first)


def clean_mark_stays(patch: pytest.MonkeyPatch) -> None:
    """Leave the clean mark, and all of ``meta``, as it was when the log is opened."""

    def keep(files: FileSystem, directory: Path, meta: Meta) -> None:
        if read_meta(files, directory) is None:
            write_meta(files, directory, meta)

    patch.setattr("transporter.log.opening.write_meta", keep)


def unclean_file_is_extended(patch: pytest.MonkeyPatch) -> None:
    """Go on in a file that an unclean stop has left, behind its last whole frame."""

    def as_clean(*arguments: Any) -> Any:
        return replace(recovery.survey(*arguments), clean=True)

    patch.setattr("transporter.log.opening.survey", as_clean)


RULES = (
    no_header_checksum,
    no_payload_checksum,
    no_record_checksum,
    rename_before_sync,
    no_floor,
    new_segment_before_the_old_is_synced,
    no_offset_skip,
    unsynced_to_routes,
    parked_record_first,
    clean_mark_stays,
    unclean_file_is_extended,
)
DAMAGE = replace(PLAN, damage_every=3)
"""A plan for failures that only show when durable frames are damaged."""


def test_every_rule_is_needed(
    without: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariants 1 to 5 and 13: with any one rule removed, a promise is broken."""
    plan = DAMAGE if without is no_floor else PLAN
    with monkeypatch.context() as patch:
        without(patch)
        found = next((seed for seed in range(BUDGET) if is_red(seed, plan=plan)), None)
    assert found is not None, f"nothing goes wrong with '{without.__name__}'"
    assert not is_red(found, plan=plan)
