"""Random lives of a log and its routes on a disk that loses power: the real code, tiny files."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Final

from crash_acts import ROUTES, Acts, Route
from crash_oracle import LOG, RouteTruth, Truth, examine, judge
from crash_oracle import open_log as open_log_on
from disks.crashes import PAGE_CACHE, crash_states, image_of
from disks.simulated import SimulatedDisk

from transporter.errors import EnvironmentFault, LogPoisoned
from transporter.log.meta import published_offset
from transporter.offsets.offset_log import declared_routes, delete_route, rename_route

if TYPE_CHECKING:
    from collections.abc import Callable

    from crash_numbers import Numbers

    from transporter.log.commit_log import CommitLog

REPEATED: Final = 0.6
"""Probability that a process that died first repeats its last act at its next start."""
NEW_FOLDER: Final = 0.5
NEW_NAME: Final = 0.04
"""Probability that the process dies right behind a creation or a rename."""


ACTS: Final = {
    "append": 18,
    "write": 9,
    "sync": 2,
    "roll": 3,
    "declare": 4,
    "deliver": 8,
    "commit": 4,
    "skip": 1,
    "acknowledge": 3,
    "park": 5,
    "replay": 4,
    "retry": 5,
    "close": 2,
    "kill": 2,
    "kill_soon": 3,
    "power_cut": 4,
    "fail_a_sync": 2,
    "delete": 1,
    "rename": 1,
}
"""Frequency of each act in a hundred or so."""


class PowerCut(BaseException):
    """A power failure, which only the code that requested it may catch."""


class Killed(BaseException):
    """Death of the process in the middle of an act. Its page cache stays."""


@dataclass
class World(Acts):
    """A log, its routes, and the truth about them, all drawn from *seed*.

    ``watch`` is called before every operation on the disk and after every act.
    Names of acts are those of the methods that :data:`ACTS` lists.
    """

    seed: int
    numbers: Numbers
    watch: Callable[[World, str], None] = lambda _world, _what: None
    disk: SimulatedDisk = field(default_factory=SimulatedDisk)
    truth: Truth = field(default_factory=Truth)
    operations: int = 0
    watched: str = ""
    history: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Open the log for the first time."""
        self.rng = Random(self.seed)
        self.clock = count(1).__next__
        self.log: CommitLog | None = None
        self.routes: dict[str, Route] = {}
        self.end_in = 0
        self.mortal = True
        self.end: type[PowerCut | Killed] = PowerCut
        self.number = 0
        self._take(self.disk)

    def act(self, name: str) -> bool:
        """Do one act, and return true if it completed.

        A power cut that comes meanwhile, a kill or a sync that fails ends the process.
        """
        self.history.append(name)
        self.mortal = True
        try:
            if self.log is None:
                self.open()
            getattr(self, name)()
            self._look(f"after {name}")
        except PowerCut as cut:
            self.history.append(f"cut before {cut}")
            self._go_on()
        except Killed as end:
            self.history.append(f"killed before {end}")
            self.kill()
        except (LogPoisoned, EnvironmentFault, OSError):
            if not self.sync_failed:
                raise
            self.kill()
        else:
            return True
        return False

    def open(self) -> None:
        """Start the process: the log, then every existing route."""
        self.sync_failed = self.truth.clean = False
        self.log = log = open_log_on(self.disk, self.clock)
        truth = self.truth
        last = truth.frames[-1].last if truth.frames else -1
        assert log.durable == last, f"{log.durable} is durable, not {last}"
        assert log._active.next > max(truth.given, last)
        truth.epoch, truth.must, truth.proved = log.epoch, last, max(truth.proved, last)
        for name, route in truth.routes.items():
            if route.legal[-1] is not None:
                self._open_route(name, 0)

    # Ends of processes.

    def close(self) -> None:
        """Stop cleanly."""
        assert self.log is not None
        for route in self.routes.values():
            route.offsets.close()
            self._synced(route)
        self.routes = {}
        log, self.log = self.log, None
        last = self.truth.frames[-1].last if self.truth.frames else -1
        log.close()
        # Invariant 18: a clean stop loses nothing, and does not need recovery.
        self.truth.must = last
        self.truth.given = max(self.truth.given, last)
        self.truth.proved = max(self.truth.proved, last)
        self.truth.clean = True

    def kill(self) -> None:
        """Let the process die. Its writes stay in the page cache."""
        with self.numbers.aside():
            found = examine(image_of(self.disk, PAGE_CACHE).disk(), whole=True)
        judge(found, self.truth)
        if self.log is not None:
            assert found.last >= self.log._active.last, f"{found.last} is left after a kill"
        self.truth.killed(found)
        self.log, self.routes, self.disk.fails = None, {}, None

    def kill_soon(self) -> None:
        """Let the process die during one of the next operations."""
        self.end_in, self.end = self.rng.randint(1, 12), Killed

    def power_cut(self) -> None:
        """Let the power fail during one of the next operations."""
        self.end_in, self.end = self.rng.randint(1, 25), PowerCut

    def fail_a_sync(self) -> None:
        """Let one of the next syncs fail. Its caller must not go on."""
        left = self.rng.randrange(5)

        def fail(_: str) -> OSError | None:
            nonlocal left
            left -= 1
            self.sync_failed = self.sync_failed or left == -1
            return OSError(errno.EIO, "injected") if left == -1 else None

        self.disk.fails = fail

    def delete(self) -> None:
        """Delete a route while no engine runs."""
        self._stop_in_order()
        for name in self._some_name():
            known = self.truth.routes[name]
            known.legal = [*known.legal, None]
            delete_route(LOG, name, self.disk)
            del self.truth.routes[name]

    def rename(self) -> None:
        """Rename a route while no engine runs."""
        self._stop_in_order()
        for name in self._some_name():
            taken = declared_routes(LOG, self.disk)
            new = next(each for each in (*ROUTES, "t", "u") if each not in taken)
            known = self.truth.routes[name]
            state = known.legal
            self.truth.routes[new] = RouteTruth([None, *state], known.parked, known.settled)
            known.legal, self.truth.moving = [None, *state], (name, new)
            rename_route(LOG, name, new, self.disk)
            self.truth.routes[new].legal, self.truth.moving = state, None
            del self.truth.routes[name]

    # Helpers of the acts.

    def _stop_in_order(self) -> None:
        """Stop for an operator's command, which only a power cut may end before its time."""
        self.disk.fails = None
        if self.end is Killed:
            self.end_in = 0
        self.mortal = False
        self.close()

    # The disk.

    def _take(self, disk: SimulatedDisk) -> None:
        disk.before = self._step
        disk.drops, disk.sites = self.disk.drops, self.disk.sites
        self.disk = disk
        self.sync_failed = False

    def _go_on(self) -> None:
        """Lose power: the disk has one of many possible states, which the next start finds."""
        images = list(crash_states(self.disk, self.rng, 12))
        image = self.rng.choice(images)
        self.history.append(f"image: {image.label}")
        with self.numbers.aside():
            found = examine(image.disk(), whole=False)
        judge(found, self.truth)
        self.truth.cut(found)
        self.log, self.routes = None, {}
        self._take(image.disk())

    def _step(self, what: str) -> None:
        self.operations += 1
        self._look(what)
        fatal = NEW_FOLDER if what.endswith("/") else NEW_NAME
        named = self.mortal and what.startswith(("create ", "rename "))
        if named and not self.end_in and self.rng.random() < fatal:
            # A dead process's successor stumbles over a name that no sync has covered.
            self.end_in, self.end = 2, Killed
        if self.end_in:
            self.end_in -= 1
            if not self.end_in:
                raise self.end(what)

    def _look(self, what: str) -> None:
        """Record the state that routes and other processes can see now, then call the watcher."""
        truth = self.truth
        seen = published_offset(self.disk, LOG) if self.disk.is_directory(LOG) else None
        truth.must = max(truth.must, -1 if seen is None else seen)
        if self.log is not None:
            truth.must = max(truth.must, self.log.durable)
        truth.given = max(truth.given, truth.must)
        for route in self.routes.values():
            known, state = truth.routes[route.name], route.offsets.state
            if known.legal[-1] != state:
                known.legal.append(state)
        self.watch(self, what)


def live(world: World, acts: int) -> None:
    """Let *world* do so many acts, and stop cleanly."""
    names, weights = list(ACTS), list(ACTS.values())
    for name in world.rng.choices(names, weights, k=acts):
        if not world.act(name) and world.rng.random() < REPEATED:
            world.act(name)
    world.act("close")
