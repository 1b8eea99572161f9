"""The setting of a benchmark: amount of work, folder, and services."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.services import Services

T = TypeVar("T")
ROOT: Final = Path(__file__).parents[1]


@dataclass(frozen=True)
class Setting:
    """The inputs of one benchmark: a folder of its own, services, and a receiver of progress."""

    folder: Path
    services: Services
    quick: bool
    report: Callable[[str], None]

    def scale(self, full: int, quick: int) -> int:
        """Return the size of a full run or that of a quick one."""
        return quick if self.quick else full

    def make_folder(self, name: str) -> Path:
        """Return a new folder."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        return folder

    def interleave(
        self, sides: Mapping[str, Callable[[], T]], pairs: int | None = None
    ) -> dict[str, tuple[T, ...]]:
        """Measure each side once to warm up, then in turns: A B A B and so on."""
        found: dict[str, list[T]] = {name: [] for name in sides}
        count = pairs or self.scale(5, 2)
        for number in range(count + 1):
            self.report(f"pair {number} of {count}" if number else "warming up")
            for name, measure in sides.items():
                value = measure()
                if number:
                    found[name].append(value)
        return {name: tuple(values) for name, values in found.items()}


def wait_until(holds: Callable[[], bool], seconds: float, what: str, pause: float = 0.002) -> None:
    """Check every *pause* seconds whether *holds*, because no event could wake us."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(pause)
