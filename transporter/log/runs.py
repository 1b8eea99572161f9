"""The runs of a log: the opens in its history, and the first offset of each.

A copy of a log and its original have the same id and assign the same epochs and offsets.
Only the random id that each open draws distinguishes their histories. Pure.
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
    """One open of a log: its epoch, its random id, and the first offset it could assign."""

    epoch: int
    run: str
    first: int


@dataclass(frozen=True, slots=True)
class Runs:
    """The newest runs of a log, oldest first. The last one is the current run.

    The very first entry marks the beginning of the record. It stays when older runs are
    dropped, without its id, because an offset stored without a run id is compared with it.
    """

    history: tuple[Run, ...] = ()

    @property
    def current(self) -> str:
        """The id of the newest run, empty before the first."""
        return self.history[-1].run if self.history else ""

    @property
    def first_own_offset(self) -> int | None:
        """The first offset that the newest run could assign, or ``None`` before the first."""
        return self.history[-1].first if self.history else None

    def begin(self, epoch: int, first: int) -> Self:
        """Return the runs with a new one of *epoch* behind them."""
        known = (*self.history, Run(epoch, secrets.token_hex(8), first))
        if len(known) > MAX_RUNS:
            oldest = known[0]._replace(run="")
            known = (oldest, *known[-MAX_RUNS + 1 :])
        return replace(self, history=known)

    def has_offset(self, run: str, epoch: int, offset: int, last_handed_out: int = -1) -> bool:
        """Return whether *offset*, stored in *run* of *epoch*, belongs to this log's own history.

        A run's offsets end where the next one's begin. Offsets beyond that, which the original
        assigned after the copy was made, are not in this log. Without a run id, only offsets
        that were durable when the record began are proved. In the current epoch those up to
        *last_handed_out*, which this run has handed out, are proved too.
        """
        if run:
            found = (place for place, each in enumerate(self.history) if each.run == run)
            place = next(found, None)
            return place is not None and (
                place + 1 == len(self.history) or offset < self.history[place + 1].first
            )
        if not self.history:
            return True  # No open of this log has recorded runs: nothing contradicts it.
        begun = offset < self.history[0].first
        return begun or (epoch == self.history[-1].epoch and offset <= last_handed_out)

    def is_run_before(self, run: str, epoch: int, declared: int) -> bool:
        """Return whether *run*, which wrote last in *epoch*, is of this log and before *declared*.

        Without a run id its epoch decides, as far as that can be trusted.
        """
        if not run:
            return epoch < declared
        return any(each.run == run and each.epoch < declared for each in self.history)

    def to_json(self) -> list[list[Any]]:
        """Return the runs as plain values."""
        return [list(each) for each in self.history]

    @classmethod
    def from_json(cls, history: Sequence[Sequence[Any]]) -> Self:
        """Decode the result of :meth:`to_json`, or raise ``TypeError`` for anything else."""
        found = cls(tuple(Run(*each) for each in history))
        if any((*map(type, each),) != (int, str, int) for each in found.history):
            raise TypeError
        return found
