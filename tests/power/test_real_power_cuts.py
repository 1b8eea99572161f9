"""Real file systems lose power at random moments, and no acked entry is lost."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

import pytest
from power.cycles import Promises, check_all, cycle
from power.loop import MAKE, Loop, loop

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CYCLES: Final = {"ext4": 2000, "xfs": 800}
FEWER: Final = "TRANSPORTER_POWER_CYCLES"
"""The environment variable for another number of cycles of each kind."""
ROUND: Final = 50
"""Cycles on one file system before it is made again."""
OPTIONS: Final = {
    "ext4": ["", "data=writeback,barrier=0", "data=journal", "commit=1,nodelalloc"],
    "xfs": ["", "wsync", "logbsize=256k"],
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserve little, because many logs come and go on a small disk."""
    monkeypatch.setattr("transporter.log.active_segment.PREALLOCATION", 128 << 10)
    monkeypatch.setattr("transporter.log.reserve.RESERVE_BYTES", 1 << 20)


def rounds(made: Loop, cycles: int) -> list[Promises]:
    """Run *cycles* on file systems made again now and then, each with its options."""
    done: list[Promises] = []
    while (left := cycles - sum(each.cycles for each in done)) > 0:
        options = OPTIONS[made.kind][len(done) % len(OPTIONS[made.kind])]
        made.format()
        done.append(Promises())
        for number in range(min(left, ROUND)):
            cycle(made, done[-1], 1000 * len(done) + number, options)
        check_all(made, done[-1])
    return done


def tell(kind: str, done: list[Promises], seconds: float) -> str:
    """Return the measurements in a line."""
    cycles, torn, acked = (
        sum(values)
        for values in zip(
            *((each.cycles, each.torn, len(each.acked)) for each in done), strict=True
        )
    )
    unacked = sum(each.unacked for each in done)
    vanished = sum(sum(each.asked.values()) - each.unacked - len(each.acked) for each in done)
    return (
        f"{kind}: {cycles} power cuts, {cycles / seconds:.0f} a second; {acked} entries acked, "
        f"none lost; not acked: {unacked} kept, {vanished} gone; {torn} torn tails"
    )


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", MAKE)
def test_power_cuts_lose_nothing_that_was_acked(
    tmp_path: Path, needs: Callable[..., None], figure: Callable[[str], None], kind: str
) -> None:
    """Invariants 1, 2, 4, 5 and 13 on a real file system, with readers, a route and write-back."""
    needs(MAKE[kind][0], "losetup", root=True)
    cycles = int(os.environ.get(FEWER, CYCLES[kind]))
    with loop(tmp_path, kind) as made:
        begun = time.monotonic()
        done = rounds(made, cycles)
        figure(tell(kind, done, time.monotonic() - begun))
    assert sum(each.cycles for each in done) == cycles
    assert sum(each.torn for each in done), "no tail was ever torn: the cuts had no teeth"


@pytest.mark.parametrize("kind", MAKE)
def test_without_syncs_the_power_cuts_lose_entries(
    tmp_path: Path, needs: Callable[..., None], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Control: with fdatasync left out, acked entries are lost or the log is refused."""
    needs(MAKE[kind][0], "losetup", root=True)
    monkeypatch.setattr("os.fdatasync", lambda _: None)
    with loop(tmp_path, kind) as made, pytest.raises(AssertionError, match=r"not there|refused"):
        rounds(made, ROUND)
