"""The rows of a storm's sources: each a pure function of the seed, its source and number."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Final

from transporter.log.reader import LogReader
from transporter.message import ERROR_HEADER, Message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMESPACES: Final = ("a.x", "a.y", "b.x", "b.y")
_KEYS: Final = 5
_KEYLESS: Final = 0.1
_POISON: Final = 0.004
_SIZES: Final = (40, 600, 3000, 8000)


@dataclass(frozen=True, slots=True)
class Row:
    """A row: its source, its number there (from 0), and its content."""

    source: str
    number: int
    namespace: str
    key: bytes | None
    data: bytes
    poison: bool

    @property
    def message(self) -> Message:
        """The message that a reader makes of the row."""
        headers = ((ERROR_HEADER, b"not readable"),) if self.poison else ()
        return Message(
            self.namespace,
            self.data,
            self.key,
            source_id=f"{self.source}/{self.number}",
            headers=headers,
        )


@lru_cache(maxsize=20_000)
def row(seed: int, source: str, number: int) -> Row:
    """Return row *number* of *source*."""
    rng = Random(f"{seed}/{source}/{number}")
    key = None if rng.random() < _KEYLESS else f"{source}-{rng.randrange(_KEYS)}".encode()
    head = f"{source}:{number}:"
    data = head.encode() + rng.randbytes(rng.choice(_SIZES) // 2).hex().encode()
    poison = rng.random() < _POISON
    return Row(source, number, rng.choice(NAMESPACES), key, data, poison)


def identity(data: bytes) -> tuple[str, int]:
    """Return the source and the number of the row that *data* belongs to."""
    source, number, _ = data.split(b":", 2)
    return source.decode(), int(number)


def logged_rows(directory: Path, last: int) -> Iterator[tuple[int, str]]:
    """Yield the offset and the source id of each entry of a log, up to the offset *last*."""
    with LogReader(directory) as reader:
        for batch in reader.read(reader.first_offset(), last):
            columns = (batch.column(name).to_pylist() for name in ("offset", "source_id"))
            yield from zip(*columns, strict=True)
