"""Each line once and in order after any power cut."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from file_sink import EndingDisk, Engine, Killed, PowerDisk, held, line, path_of, run

from transporter.errors import RouteFault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SETTINGS: list[dict[str, Any]] = [{}, {"roll_bytes": 100}]
EXACT = {"exact_after": "power-cut"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a file that does not exist yet."""
    return tmp_path / "sink" / "out.jsonl"


def exact(engine: Engine) -> None:
    """Check that each line is there once."""
    assert b"".join(held(engine.path.parent).values()) == engine.expected()


def complete(engine: Engine) -> None:
    """Check that each line is there, and that first occurrences are in order."""
    lines = b"\n".join(held(engine.path.parent).values()).split(b"\n")
    whole = [line(n) for n in range(1, engine.total + 1)]
    first_seen = list(dict.fromkeys(one for one in lines if one in whole))
    assert first_seen == whole


def cut_power(
    path: Path,
    settings: dict[str, Any],
    kind: type[PowerDisk] = PowerDisk,
    check: Callable[[Engine], None] = exact,
) -> None:
    """Cut the power at every call, start again, and check the files."""
    chance = random.Random(7)
    for at in [*range(1, 45)] * 6:
        engine = Engine(path.with_name(f"{at}-{chance.random()}") / path.name, settings)
        disk = kind(at, engine.path.parent)
        run(engine, (1, 9, 3), disk)
        disk.fall(engine.path.parent, chance)
        if chance.random() < 0.5:  # The engine's own record of acks is lost, too.
            engine.next, engine.delivered = 1, []
        engine.finish(disk=EndingDisk(boot="second run"))
        check(engine)


@pytest.mark.exhaustive
@pytest.mark.parametrize("settings", SETTINGS)
def test_a_power_cut_at_any_call_leaves_each_line_once(
    path: Path, settings: dict[str, Any]
) -> None:
    """With ``exact_after: power-cut`` nothing is repeated or lost, with any unsynced bytes."""
    cut_power(path, settings | EXACT)


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_power_cut_loses_no_line(path: Path, settings: dict[str, Any]) -> None:
    """Without exact_after a power cut may repeat lines, but loses none."""
    cut_power(path, settings, check=complete)


def test_without_that_setting_lines_may_be_repeated(path: Path) -> None:
    """Without the second sync lines may be repeated."""
    with pytest.raises(AssertionError):
        cut_power(path, {})


def test_an_exact_route_may_become_another(path: Path) -> None:
    """Lines written after the setting was removed are not cut by progress written before."""
    chance = random.Random(5)
    for at in [*range(1, 40)] * 4:
        engine = Engine(path.with_name(f"{at}-{chance.random()}") / path.name, EXACT)
        engine.start()
        engine.deliver(5)
        engine.stop()
        engine.settings = {}
        disk = PowerDisk(at, engine.path.parent)
        run(engine, (2, 2, 2, 2, 2), disk)
        disk.fall(engine.path.parent, chance)
        engine.finish(disk=EndingDisk(boot="second run"))
        complete(engine)


class LinesUnsynced(PowerDisk):
    """A disk that syncs everything but the lines."""

    def sync(self, descriptor: int) -> None:
        if path_of(descriptor).suffix == ".progress":
            super().sync(descriptor)


class ProgressUnsynced(PowerDisk):
    """A disk that syncs everything but the progress."""

    def sync(self, descriptor: int) -> None:
        if path_of(descriptor).suffix != ".progress":
            super().sync(descriptor)


class NamesUnsynced(PowerDisk):
    """A disk that syncs everything but folders."""

    def sync_folder(self, folder: Path) -> None:
        """Do nothing."""


@pytest.mark.parametrize("kind", [LinesUnsynced, ProgressUnsynced, NamesUnsynced])
def test_without_a_sync_a_power_cut_does_harm(path: Path, kind: type[PowerDisk]) -> None:
    """Each of the three syncs is needed, because without it a power cut loses lines."""
    with pytest.raises((AssertionError, RouteFault)):
        cut_power(path, {"roll_bytes": 100} | EXACT, kind)


class CountingDisk(EndingDisk):
    """A disk that counts the syncs of the progress file."""

    syncs = 0

    def sync(self, descriptor: int) -> None:
        self.syncs += path_of(descriptor).suffix == ".progress"
        super().sync(descriptor)


@pytest.mark.parametrize(
    ("settings", "boot", "syncs"), [({}, "a run", 0), ({}, "", 4), (EXACT, "a run", 4)]
)
def test_the_progress_is_synced_when_need_be(
    path: Path, settings: dict[str, Any], boot: str, syncs: int
) -> None:
    """A slice costs a second sync with exact_after, or where the boot has no identifier."""
    engine = Engine(path, settings)
    disk = CountingDisk(boot=boot)
    engine.start(disk)
    opening = disk.syncs
    for _ in range(4):
        engine.deliver(2)
    engine.stop()

    assert disk.syncs - opening == syncs


def test_a_clean_restart_of_the_machine_changes_nothing(path: Path) -> None:
    """A numbered file without bytes behind the recorded length is continued."""
    engine = Engine(path, {"roll_bytes": 10_000}, total=8)
    engine.start()
    engine.deliver(4)
    engine.stop()
    engine.finish(disk=EndingDisk(boot="second run"))

    assert held(path.parent) == {"out.0000000001.jsonl": engine.expected()}


def test_after_a_restart_of_the_machine_nothing_is_cut(path: Path) -> None:
    """Lines left by a kill before a reboot may have been acknowledged, so they stay."""
    engine = Engine(path, total=4)
    disk = EndingDisk()
    engine.start(disk)
    engine.deliver(2)
    disk.at, disk.moment = disk.calls + 2, "within"
    with pytest.raises(Killed):
        engine.deliver(1)
    engine.stop()
    left = path.read_bytes()
    engine.finish(disk=EndingDisk(boot="second run"))

    assert path.read_bytes() == left + b"\n" + line(3) + b"\n" + line(4) + b"\n"
