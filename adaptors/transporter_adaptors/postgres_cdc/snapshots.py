"""Snapshots of PostgreSQL: which transactions a query has seen. Pure.

See "System Information Functions" in PostgreSQL's manual, ``pg_current_snapshot``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_HALF: Final = 1 << 31
_EPOCH: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The transactions that a query sees: all before ``xmax`` but for the ``running``.

    The numbers have 64 bits, as those of ``pg_current_snapshot``.
    """

    xmin: int
    xmax: int
    running: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Read *text* such as ``10:20:10,14,15``. Raise ``ValueError`` if it is not a snapshot."""
        try:
            xmin, xmax, running = text.split(":")
            found = cls(int(xmin), int(xmax), frozenset(map(int, filter(None, running.split(",")))))
        except ValueError:
            raise ValueError(f"{text!r} is not a snapshot such as 10:20:10,14,15") from None
        if not 0 < found.xmin <= found.xmax:
            raise ValueError(f"{text!r} is not a snapshot: its first number is beyond its second")
        return found

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, sorted(self.running)))}"

    def sees(self, xid: int) -> bool:
        """Return whether the changes of transaction *xid* (64 bits), which has committed, show."""
        return xid < self.xmax and xid not in self.running


def widen_xid(xid: int, near: int) -> int:
    """Return the 64-bit number of the transaction *xid*, given by 32 bits, that is next to *near*.

    The server stops long before two running transactions are 2^31 apart.
    """
    wide = near - near % _EPOCH + xid
    if wide > near + _HALF and wide >= _EPOCH:
        return wide - _EPOCH
    return wide + _EPOCH if wide <= near - _HALF else wide
