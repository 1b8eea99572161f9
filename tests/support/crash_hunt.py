"""A check of every crash state that random lives of a log could have had.

``PYTHONPATH=tests:tests/support python -m crash_hunt SEED OPERATION`` reproduces a failure there.
"""

from __future__ import annotations

import gc
import sys
from array import array
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

from crash_numbers import Numbers, tiny
from crash_oracle import Outcome, Violation, damaged_is_refused, examine, judge
from crash_world import World, live
from disks.crashes import Image, crash_states

if TYPE_CHECKING:
    from collections.abc import Callable

    from disks.simulated import SimulatedDisk


@dataclass(frozen=True, slots=True)
class Plan:
    """The depth to which a life is checked.

    A life has ``acts`` acts. Before each operation ``states`` power cuts are tried. One time in
    ``nested_every``, ``nested`` more are tried before each operation of the recovery. One time in
    ``damage_every`` a durable frame is damaged. One time in ``whole_every`` a recovered log goes
    on, stops and starts again. ``only`` is the one operation to check.
    """

    acts: int = 30
    states: int = 8
    nested: int = 4
    nested_every: int = 60
    whole_every: int = 6
    damage_every: int = 60
    only: int | None = None


class Red(AssertionError):
    """A failure in one life, and the command to reproduce it."""


@dataclass
class Hunt:
    """The crash states of one life, each counted and checked once."""

    seed: int
    numbers: Numbers
    plan: Plan
    seen: dict[int, Outcome] = field(default_factory=dict)
    label: str = ""

    def __call__(self, world: World, what: str) -> None:
        """Check the states that a power cut right before the operation *what* may leave."""
        self.label, world.watched = "", what
        if self.plan.only not in (None, world.operations):
            return
        # The same states whether or not earlier operations were checked.
        rng = Random(f"{self.seed}/{world.operations}/{what}")
        with self.numbers.aside():
            for image in crash_states(world.disk, rng, self.plan.states):
                self._check(image, world, rng.getrandbits(32))

    def _check(self, image: Image, world: World, draw: int) -> None:
        """Judge the state on *image*."""
        self.label = image.label
        found = self.seen.get(image.fingerprint)
        if found is not None:
            judge(found, world.truth)
            return
        rng = Random(draw)
        found = examine(self._disk(image, world), whole=not rng.randrange(self.plan.whole_every))
        self.seen[image.fingerprint] = found
        judge(found, world.truth)
        if not rng.randrange(self.plan.nested_every):
            self._nest(image, world, found, rng)
        if not rng.randrange(self.plan.damage_every):
            self.label = f"{image.label}, then damaged"
            damaged_is_refused(self._disk(image, world), world.truth.proved, rng.randrange)

    def _nest(self, image: Image, world: World, first: Outcome, rng: Random) -> None:
        """Crash again before every operation of this recovery."""
        disk = self._disk(image, world)

        def watch(what: str) -> None:
            for again in crash_states(disk, rng, self.plan.nested):
                self.label = f"{image.label}, then before {what}: {again.label}"
                self._check_again(again, world, first)

        def opened() -> None:
            watch("the first append")
            disk.before = lambda _: None

        disk.before = watch
        examine(disk, whole=False, opened=opened)

    def _check_again(self, image: Image, world: World, first: Outcome) -> None:
        """Judge the state after a second crash, which must not assign visible offsets again."""
        found = self.seen.get(image.fingerprint)
        if found is None:
            found = examine(self._disk(image, world), whole=False)
            self.seen[image.fingerprint] = found
        judge(found, replace(world.truth, clean=False))
        above = max(first.visible, first.last)
        if found.next <= above:
            raise Violation(f"{found.next} is next after a second crash, but {above} was visible")

    def _disk(self, image: Image, world: World) -> SimulatedDisk:
        disk = image.disk()
        disk.drops = world.disk.drops
        return disk


def hunt(seed: int, plan: Plan, prepare: Callable[[World], None] = lambda _: None) -> array[int]:
    """Live the life *seed*, check its crash states, and return their fingerprints.

    Fingerprints compare between processes of one ``PYTHONHASHSEED``.

    Raises:
        Red: a promise was broken, or something failed that must not.
    """
    gc.collect()
    with tiny() as numbers:
        look = Hunt(seed, numbers, plan)
        world = World(seed, numbers, look)
        prepare(world)
        try:
            live(world, plan.acts)
        except Exception as error:
            raise Red(
                f"seed {seed}, operation {world.operations}, before '{world.watched}', "
                f"state '{look.label}': {type(error).__name__}: {error}\n"
                f"acts: {', '.join(world.history)}\n"
                f"again: PYTHONPATH=tests:tests/support python -m crash_hunt"
                f" {seed} {world.operations}"
            ) from error
    return array("q", look.seen)


if __name__ == "__main__":
    hunt(int(sys.argv[1]), Plan(only=int(sys.argv[2])))
