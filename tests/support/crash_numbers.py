"""Deterministic ids and tiny files, so that a random life repeats itself."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Numbers:
    """A source of ids that repeats itself, independent of checks made in between."""

    drawn: int = 0

    def draw(self, bits: int) -> int:
        """Return the next number, spread over *bits* bits, so that its halves differ, too."""
        self.drawn += 1
        return self.drawn * 0x9E3779B97F4A7C15F39CC0605CEDC835 & (1 << bits) - 1

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Draw other numbers for the length of a block."""
        kept, self.drawn = self.drawn, 1 << 40
        yield
        self.drawn = kept


@contextmanager
def tiny() -> Iterator[Numbers]:
    """Make files, reserves and strides tiny, and everything random deterministic."""
    numbers = Numbers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transporter.log.active_segment.PREALLOCATION", 2048)
        patch.setattr("transporter.log.index.STRIDE", 900)
        patch.setattr("transporter.log.reserve.RESERVE_BYTES", 600)
        patch.setattr("transporter.offsets.offset_log.FILE_BYTES", 768)
        patch.setattr("secrets.randbits", numbers.draw)
        patch.setattr("uuid.uuid4", lambda: UUID(int=numbers.draw(120)))
        patch.setattr("transporter.audit.time", SimpleNamespace(time=lambda: 1.0))
        yield numbers
