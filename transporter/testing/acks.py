"""An ack that records every call of a writer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transporter.errors import SinkError
    from transporter.message import Entries


class RecordingAck:
    """An implementation of ``transporter.adaptor.Ack`` for one batch that keeps every call."""

    def __init__(self, batch: Entries) -> None:
        """Expect the offsets of *batch*. Others are an error."""
        self._expected = batch.offsets
        self._known = frozenset(self._expected)
        self.acked: list[int] = []
        """Offsets in the order in which they were acked."""
        self.failures: list[tuple[SinkError, int | None]] = []
        """Errors with the offset they name, in the order in which they were reported."""

    def __repr__(self) -> str:
        """Return what was reported, which pytest shows where an assertion fails."""
        failures = ", ".join(f"{error!r} at {offset}" for error, offset in self.failures)
        return f"<{len(self.acked)} of {len(self._expected)} acked; failures: {failures or 'none'}>"

    def __call__(self, offsets: Iterable[int]) -> None:
        """Record *offsets* as delivered."""
        told = list(offsets)
        if strangers := set(told) - self._known:
            raise ValueError(f"acked offsets that are not in the batch: {sorted(strangers)}")
        self.acked += told

    def all(self) -> None:
        """Record the whole batch as delivered."""
        self.acked = list(self._expected)

    def fail(self, error: SinkError, offset: int | None = None) -> None:
        """Record a failure."""
        self.failures.append((error, offset))

    @property
    def prefix(self) -> list[int]:
        """The delivered offsets: those acked before the first that failed or was not acked."""
        stopped = {offset for _, offset in self.failures} | (set(self._expected) - set(self.acked))
        first = next((at for at, one in enumerate(self._expected) if one in stopped), None)
        return self._expected[:first]

    @property
    def complete(self) -> bool:
        """True if the whole batch was acked and nothing failed."""
        return self.prefix == self._expected and not self.failures
