"""Assignment of lines to numbered files. Opens no file.

It depends on the lines and never on where a slice begins or ends: lines that
are redelivered after a crash go to the same file as before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_DIGITS: Final = 10


class RolledGroup(NamedTuple):
    """The lines of one entry, which stay together. A step may make several of one entry."""

    offset: int
    logged_at: int
    text: bytes


@dataclass(frozen=True, slots=True)
class RolledPart:
    """Lines for one file, of the entries at ``offsets``. ``fresh`` means the next file.

    ``period`` is the file's period with these lines in it, by its beginning in µs since 1970.
    """

    text: bytes
    offsets: tuple[int, ...]
    fresh: bool = False
    period: int = 0


@dataclass(frozen=True, slots=True)
class Roll:
    """The limits of a file. ``every`` is in µs. ``None`` means that there is no such limit."""

    size: int | None = None
    every: int | None = None

    def divide(
        self, groups: Iterable[RolledGroup], length: int, period: int
    ) -> Iterator[RolledPart]:
        """Divide *groups* among the file of *length* bytes and *period*, and those after it."""
        held: list[RolledGroup] = []
        room, fresh = self._room(length), False
        for group in groups:
            began = max(period, self._period_start(group.logged_at))
            filled = length > 0 or bool(held)
            if filled and (began > period or len(group.text) > room):
                if held:
                    yield _join_groups(held, fresh=fresh, period=period)
                held, length, room, fresh = [], 0, self._room(0), True
            held.append(group)
            room, period = room - len(group.text), began
        if held:
            yield _join_groups(held, fresh=fresh, period=period)

    def _room(self, length: int) -> float:
        return float("inf") if self.size is None else self.size - length

    def _period_start(self, logged_at: int) -> int:
        return 0 if self.every is None else logged_at - logged_at % self.every


def _join_groups(groups: list[RolledGroup], *, fresh: bool, period: int) -> RolledPart:
    text = b"".join(group.text for group in groups)
    return RolledPart(text, tuple(group.offset for group in groups), fresh, period)


def shard_path(path: Path, shard: int, shards: int) -> Path:
    """Return the file of one of *shards* workers, which is *path* itself for the only one."""
    if shards == 1:
        return path
    return path.with_name(f"{path.stem}.shard-{shard}{path.suffix}")


def numbered_path(path: Path, number: int) -> Path:
    """Return the name of the file *number* of *path*. Names sort as the numbers do."""
    return path.with_name(f"{path.stem}.{number:0{_DIGITS}}{path.suffix}")


def number_of(path: Path, name: str) -> int | None:
    """Return the number of *name* among the files of *path*, or ``None`` for any other name."""
    pattern = rf"{re.escape(path.stem)}\.([0-9]{{{_DIGITS}}}){re.escape(path.suffix)}"
    found = re.fullmatch(pattern, name)
    return int(found[1]) if found else None
