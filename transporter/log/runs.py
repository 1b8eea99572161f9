"""The runs of a log: which opens are part of its history, and where each one began.

A copy of a log and its original have the same id and give the same epochs and offsets.
Only the random id that each open draws tells their histories apart. Pure.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_RUNS: Final = 1000
"""Runs that a log remembers (Invariant 17)."""


class Run(NamedTuple):
    """One open of a log: its epoch, its random id, and the first offset it could give."""

    epoch: int
    run: str
    first: int


@dataclass(frozen=True, slots=True)
class Runs:
    """The newest runs of a log, oldest first; the last one is that of now.

    The very first entry is where the record begins. It stays when older runs are dropped,
    without its id, because an offset that was stored without one is compared with it.
    """

    known: tuple[Run, ...] = ()

    @property
    def current(self) -> str:
        """The id of the newest run; empty before the first."""
        return self.known[-1].run if self.known else ""

    @property
    def own(self) -> int | None:
        """The first offset that the newest run could give; ``None`` before the first."""
        return self.known[-1].first if self.known else None

    def begin(self, epoch: int, first: int) -> Self:
        """Return the runs with a new one of *epoch* behind them."""
        known = (*self.known, Run(epoch, secrets.token_hex(8), first))
        if len(known) > MAX_RUNS:
            oldest = known[0]._replace(run="")
            known = (oldest, *known[-MAX_RUNS + 1 :])
        return replace(self, known=known)

    def prove(self, run: str, epoch: int, offset: int, handed: int = -1) -> bool:
        """Tell whether *offset*, stored in *run* of *epoch*, is of this log's own history.

        A run's offsets end where the next one's begin: what the original gave beyond that,
        after the copy was made, is not in this log. Without a run's id only what was
        durable when the record began is proved, and in the current epoch what this run has
        *handed* out, up to that offset.
        """
        if run:
            found = (place for place, each in enumerate(self.known) if each.run == run)
            place = next(found, None)
            return place is not None and (
                place + 1 == len(self.known) or offset < self.known[place + 1].first
            )
        if not self.known:
            return True  # No open of this log has recorded runs: nothing contradicts it.
        begun = offset < self.known[0].first
        return begun or (epoch == self.known[-1].epoch and offset <= handed)

    def precede(self, run: str, epoch: int, declared: int) -> bool:
        """Tell whether *run*, which wrote last in *epoch*, is of this log, and before *declared*.

        Without a run's id its epoch tells, as far as that can be believed.
        """
        if not run:
            return epoch < declared
        return any(each.run == run and each.epoch < declared for each in self.known)

    def to_json(self) -> list[list[Any]]:
        """Return the runs as plain values."""
        return [list(each) for each in self.known]

    @classmethod
    def from_json(cls, known: Sequence[Sequence[Any]]) -> Self:
        """Read what :meth:`to_json` returned; raise ``TypeError`` when it is something else."""
        found = cls(tuple(Run(*each) for each in known))
        if any((*map(type, each),) != (int, str, int) for each in found.known):
            raise TypeError
        return found
