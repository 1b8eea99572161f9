"""The N-th call fails, for every N: promises stay true, and no more are made."""

from __future__ import annotations

import errno
import os
import random
import shutil
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from crash.workload import Ledger, Life, check_restart, live, small_files
from disks.crashes import crash_states
from disks.faulty import SPACE, SYNCS, Fault, FaultyDisk
from disks.simulated import SimulatedDisk

from transporter.errors import LogFull, TransporterError
from transporter.log import opening
from transporter.log.active_segment import ActiveSegment, SyncFailed
from transporter.log.filesystem import RealFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FAULTS: Final = {
    "EIO": Fault(0, errno.EIO),
    "ENOSPC": Fault(0, errno.ENOSPC),
    "EDQUOT": Fault(0, errno.EDQUOT),
    "EINTR": Fault(0, errno.EINTR),
    "EMFILE": Fault(0, errno.EMFILE, frozenset({"open", "names", "sync_directory"})),
    "torn write": Fault(0, errno.EIO, frozenset({"pwrite"}), part=0.6),
    "short of space": Fault(0, errno.ENOSPC, frozenset({"pwrite", "allocate"}), part=0.4),
    "full disk": Fault(0, errno.ENOSPC, SPACE, lasts=True),
    "full disk, torn write": Fault(0, errno.ENOSPC, frozenset({"pwrite"}), part=0.9, lasts=True),
    "dead disk": Fault(0, errno.EIO, lasts=True),
}
SAMPLE: Final = 6
"""Cases of each fault that ``make test`` takes."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make files small. Real syncs are left out, because nothing here ends the machine."""
    monkeypatch.setattr("os.fdatasync", lambda _: None)
    monkeypatch.setattr("os.fsync", lambda _: None)
    with small_files():
        yield


def fail(folder: Path, fault: Fault | None) -> FaultyDisk:
    """Live on a disk with *fault*, then start again on a healthy one."""
    disk, ledger = FaultyDisk(RealFileSystem(), fault), Ledger()
    try:
        live(folder / "log", disk, ledger)
    except TransporterError:
        assert disk.struck, "it failed by itself"
    finally:
        disk.kill()
    check_restart(folder / "log", RealFileSystem(), ledger)
    return disk


def problems(folder: Path, fault: Fault, *, every: bool = True) -> Iterator[str]:
    """Fail each call that a life makes, or a seeded sample of them. Yield the problems."""
    calls = [call for call in fail(folder / "whole", None).calls if call.kind in fault.kinds]
    places = range(1, len(calls) + 1)
    chosen = places if every else random.Random(5).sample(places, min(SAMPLE, len(calls)))
    for at in chosen:
        try:
            fail(folder / str(at), replace(fault, at=at))
        except Exception as error:  # noqa: BLE001 - each of them is a finding
            yield f"{calls[at - 1]}, call {at}: {error!r}"
        shutil.rmtree(folder / str(at))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FAULTS)
def test_whatever_call_fails_nothing_told_is_lost(
    tmp_path: Path, name: str, exhaustive: bool
) -> None:
    """Invariants 1, 2, 4, 5, 13 and 14, with every call of a life failing once, or from then on."""
    assert list(problems(tmp_path, FAULTS[name], every=exhaustive)) == []


SYNC_ERRORS: Final = (errno.EIO, errno.ENOSPC)


@pytest.mark.parametrize("error", SYNC_ERRORS, ids=errno.errorcode.get)
def test_every_failing_sync_is_final(tmp_path: Path, error: int, exhaustive: bool) -> None:
    """Invariant 13: no append or settle is acked over a failed sync, nor ever after it."""
    assert list(problems(tmp_path, Fault(0, error, SYNCS), every=exhaustive)) == []


def test_a_log_that_ignores_a_failed_sync_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: where a failed sync is ignored, the same test sees acks without durable entries."""
    monkeypatch.setattr(ActiveSegment, "sync", _passing_over(ActiveSegment.sync))
    found = problems(tmp_path, Fault(0, errno.EIO, SYNCS))
    assert any("acked over a failed sync" in problem for problem in found)


def test_a_log_that_keeps_a_partial_frame_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: where a refused frame is not taken back, the same test sees it (Invariant 14)."""
    monkeypatch.setattr(ActiveSegment, "_roll_back", _keep_partial)
    assert any(problems(tmp_path, FAULTS["short of space"]))


def _passing_over(sync: Callable[[ActiveSegment], None]) -> Callable[[ActiveSegment], None]:
    def careless(active: ActiveSegment) -> None:
        with suppress(SyncFailed):
            sync(active)

    return careless


def _keep_partial(active: ActiveSegment, error: OSError) -> None:
    """Refuse, and go on behind the bytes that were written."""
    active.byte = max(active.byte, active._file.size())
    raise LogFull("full") from error


LOG: Final = Path("/log")


class Failing:
    """Fails the *at*-th sync of a simulated disk, which drops the bytes it should have written."""

    def __init__(self, at: int) -> None:
        self._left = at

    def __call__(self, _: str) -> OSError | None:
        self._left -= 1
        return OSError(errno.EIO, os.strerror(errno.EIO)) if self._left == 0 else None


def cut_after_failed_sync(at: int, cuts: int) -> None:
    """Fail a sync, start again over the same page cache, work, cut the power, start again."""
    disk, ledger = SimulatedDisk(), Ledger()
    disk.fails = Failing(at)
    with suppress(TransporterError):
        live(LOG, FaultyDisk(disk), ledger)
    life = Life(LOG, FaultyDisk(disk), ledger)
    life.append("a", 1)
    life.append("b", 2)
    life.settle(sync=True)
    life.append("a", 1)
    for image in crash_states(disk, random.Random(at), cuts):
        check_restart(LOG, image.disk(), deepcopy(ledger), power_cut=True)


def losses(cuts: int) -> Iterator[str]:
    """Cut the power after each sync of a life has failed. Yield the problems."""
    disk = FaultyDisk(SimulatedDisk())
    live(LOG, disk, Ledger())
    calls = [call for call in disk.calls if call.kind in SYNCS]
    for at, call in enumerate(calls, 1):
        try:
            cut_after_failed_sync(at, cuts)
        except Exception as error:  # noqa: BLE001 - each of them is a finding
            yield f"{call}, sync {at}: {error!r}"


@pytest.mark.timeout(1800)
def test_pages_that_a_failed_sync_dropped_are_not_trusted(exhaustive: bool) -> None:
    """Invariant 13: entries a restart reads but the disk lacks are written again, elsewhere."""
    assert list(losses(100 if exhaustive else 3)) == []


def test_a_log_that_extends_a_file_left_by_a_failed_sync_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Control: without recovery's copy, entries behind dropped pages are lost with them."""
    monkeypatch.setattr(opening, "copy_tail", lambda _, segment, *__, **___: segment.path)
    assert any("not there" in loss or "Corrupt" in loss for loss in losses(4))


def test_a_log_that_syncs_again_after_a_failure_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a second sync that succeeds proves nothing, and the power cut shows it."""
    monkeypatch.setattr(ActiveSegment, "sync", _again(ActiveSegment.sync))
    monkeypatch.setattr(Life, "_told", lambda _, ask: ask())
    assert any("acked and not there" in loss or "Corrupt" in loss for loss in losses(4))


def _again(sync: Callable[[ActiveSegment], None]) -> Callable[[ActiveSegment], None]:
    def stubborn(active: ActiveSegment) -> None:
        try:
            sync(active)
        except SyncFailed:
            sync(active)

    return stubborn
