"""How long to wait before trying again."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Doubling delays with jitter, from *first* to *most* seconds. Not thread-safe."""

    first: float = 0.2
    most: float = 30.0
    failures: int = 0

    def next(self) -> float:
        """Count a failure and return the seconds to wait: between half of the delay and all."""
        delay = min(self.most, self.first * 2.0 ** min(self.failures, 32))
        self.failures += 1
        return delay * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret

    def reset(self) -> None:
        """Begin anew after a success."""
        self.failures = 0
