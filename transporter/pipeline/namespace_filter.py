"""The namespace filter of a route: a regular expression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import pyarrow as pa
from pydantic import AfterValidator

from transporter.message import FEW, NOOP

EVERYTHING: Final = ".*"


@dataclass(frozen=True, slots=True)
class NamespaceFilter:
    """A namespace filter by the RE2 expression *pattern*, which matches anywhere unless anchored.

    RE2 runs in linear time for every pattern, and has neither look-around nor back-references.
    Raises :class:`ValueError` with RE2's reason for an invalid pattern. Immutable and
    thread-safe.
    """

    pattern: str = EVERYTHING

    def __post_init__(self) -> None:
        if not self.matches_all:
            self._match(pa.array([""]))  # an empty array would not compile the pattern

    @property
    def matches_all(self) -> bool:
        """True if the filter takes every entry, so that no mask is needed at all."""
        return self.pattern in (EVERYTHING, "")

    def mask(self, column: pa.Array) -> pa.BooleanArray:
        """Return for each namespace in *column* (no nulls) whether the route takes it."""
        if self.matches_all:
            return pa.repeat(pa.scalar(value=True, type=pa.bool_()), len(column))
        if len(column) > 1 and _all_equal(column):
            return pa.repeat(self._match(column[:1])[0], len(column))
        return self._match(column)

    def select(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Return the *entries* that a route with this filter delivers: those without noops."""
        if not self.matches_all:
            entries = entries.filter(self.mask(entries.column("namespace")))
        return without_noops(entries)

    def _match(self, column: pa.Array) -> pa.BooleanArray:
        import pyarrow.compute as pc  # noqa: PLC0415 - 60 ms that `.*` does without

        try:
            return pc.match_substring_regex(column, pattern=self.pattern)
        except pa.ArrowInvalid as error:
            # Behind RE2's reason comes a piece of the pattern, which may hold a secret.
            reason = str(error).removeprefix("Invalid regular expression: ").partition(": ")[0]
            raise ValueError(f"is not a regular expression that RE2 reads: {reason}") from error


def without_noops(entries: pa.RecordBatch) -> pa.RecordBatch:
    """Return *entries* without those of the op ``noop``, which no writer gets."""
    ops = entries.column("op")
    if len(ops) <= FEW and NOOP not in ops.to_pylist():
        return entries
    import pyarrow.compute as pc  # noqa: PLC0415 - see NamespaceFilter._match

    noops = pc.equal(ops, pa.scalar(NOOP, pa.string()))
    return entries.filter(pc.invert(noops)) if pc.any(noops).as_py() else entries


def _check_pattern(pattern: str) -> str:
    return NamespaceFilter(pattern).pattern


Pattern = Annotated[str, AfterValidator(_check_pattern)]
"""The text of a namespace filter, as a setting."""


def _all_equal(column: pa.Array) -> bool:
    """Return whether *column* (not empty) repeats one value: ten times cheaper than matching."""
    import pyarrow.compute as pc  # noqa: PLC0415 - see Namespace._match

    return column[0] == column[-1] and bool(pc.all(pc.equal(column, column[0])).as_py())
