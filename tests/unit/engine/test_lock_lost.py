"""An engine without its lock file changes nothing that another one may own (Invariant 12).

The other engine may start at any moment, and reads offset logs and parked entries once.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from engine_tools import Events, Holders
from table_tools import RouteParts

from transporter.engine.maintenance.log_budget import Housekeeper
from transporter.engine.maintenance.retention_holds import RetentionHolds
from transporter.engine.routing.superseding import supersede
from transporter.errors import LockLost
from transporter.log.commit_log import CommitLog
from transporter.log.lock import LOCK
from transporter.log.maintenance import read_maintenance
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import OffsetLog
from transporter.offsets.parked import ParkedStore, parked_offsets
from transporter.offsets.state import Range
from transporter.pipeline.config import LogConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class World(RouteParts):
    """A log of three entries, of which a route has parked the first and delivered none."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.log.append(messages_to_batch([Message("n", b"x", b"k")] * 3), "in")
        self.parking.park(0, "bad", 1)

    def lose(self) -> dict[str, bytes]:
        """Remove the lock file, and return the content of the files beside the log."""
        (self.log.directory / LOCK).unlink()
        return self.files()

    def files(self) -> dict[str, bytes]:
        """Return the content of the route's files."""
        return {
            str(each): each.read_bytes()
            for each in sorted(self.offsets.folder.rglob("*"))
            if each.is_file()
        }


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Yield a log, and close it."""
    made = World(tmp_path)
    yield made
    with suppress(LockLost):
        made.close()


def test_what_another_engine_has_parked_is_not_superseded(world: World) -> None:
    """Entries parked by another engine are not superseded, or they would count as delivered."""
    before = world.lose()
    with pytest.raises(LockLost):
        supersede("in", 2, world.reader, world.offsets, world.parking)
    assert parked_offsets(world.offsets.folder, world.offsets._files) == [0]
    assert world.files() == before


def test_parked_entries_stay_as_they_are(world: World) -> None:
    """A skip, delivery, failure or parking is refused, and parked entries stay as they are."""
    before = world.lose()
    for change in (
        lambda: world.parking.skip([0]),
        lambda: world.parking.remove_delivered(0),
        lambda: world.parking.record_failure(0, "bad"),
        lambda: world.parking.park(1, "bad", 1),
    ):
        with pytest.raises(LockLost):
            change()
    assert world.files() == before


def test_offset_logs_stay_as_they_are(world: World) -> None:
    """Offset logs stay as they are, because the files are used in turn by both engines."""
    before = world.lose()
    for write in (
        lambda: world.offsets.settle(Range(1, 1), 2),
        lambda: world.offsets.begin_superseding("in", 2),
        world.offsets.pause,
    ):
        with pytest.raises(LockLost):
            write()
    world.offsets.close()
    assert world.files() == before


def test_nothing_is_held_or_compacted_by_what_it_knows(world: World) -> None:
    """The engine neither holds nor compacts, because the other engine's routes may need entries."""
    events = Events()
    holds = RetentionHolds(world.log, Holders({"out": world.offsets}), events, world.offsets._audit)
    settings = LogConfig.model_validate({"dir": world.log.directory})
    keeper = Housekeeper(world.log, settings, holds, events, events)
    world.lose()
    with pytest.raises(LockLost):
        holds.least_hold()
    with pytest.raises(LockLost):
        holds.release("other", 1)
    with pytest.raises(LockLost):
        keeper.compactor.run_once(0)
    assert read_maintenance(world.offsets._files, world.log.directory) is None


def test_who_asks_waits_for_no_append(world: World) -> None:
    """A check of the lock does not wait for an append, which may last as long as a sync."""
    asked = threading.Event()

    def ask() -> None:
        world.log.check_lock()
        asked.set()

    with world.log._condition:
        threading.Thread(target=ask, daemon=True).start()
        assert asked.wait(10)
    world.lose()


def test_without_an_engine_nobody_is_asked(tmp_path: Path) -> None:
    """Without an engine no lock check happens, because commands hold the lock themselves."""
    with CommitLog.open(tmp_path / "log") as log:
        log.append(messages_to_batch([Message("n", b"x")]), "in")
    with OffsetLog(tmp_path / "log", "out") as offsets:
        offsets.settle(Range(0, 0), 0)
        assert len(ParkedStore(offsets.folder)) == 0
