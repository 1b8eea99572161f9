"""A follower of an engine's log through all that happens to it."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Final

from storm.rows import row
from storm.truth import RowId, Violation, parsed, ranges_of

from transporter.errors import TransporterError
from transporter.log.follow import Follower

if TYPE_CHECKING:
    from pathlib import Path

    from storm.plan import Plan

_OFTEN: Final = 0.3
"""Probability of a look behind an act. A rare look finds much changed."""


class Following:
    """Follows one log, and judges: each entry is shown once, in order, or reported as gone.

    An entry that compaction may have dropped before it was reached need not be shown.
    """

    def __init__(self, plan: Plan, engine: str, directory: Path) -> None:
        """Begin at the beginning of the log in *directory*."""
        self._seed, self._engine, self._directory = plan.seed, engine, directory
        self._by_key = plan.log["compaction"].get("keep") == "key"
        self._chance = Random(f"{plan.seed}/{engine}")
        self._follower = Follower(directory, 0)
        self._first, self._shown = 0, dict[int, RowId]()
        self._gone = set[int]()

    def begin_again(self) -> None:
        """Go on at the end of the log, which was replaced by another one."""
        self._follower.close()
        self._follower = Follower(self._directory, 0)
        with suppress(TransporterError, OSError):
            self._follower.next = self._follower.confirmed_offset() + 1
        self._first = self._follower.next
        self._shown.clear()
        self._gone.clear()

    def look(self, *, surely: bool = False) -> None:
        """Read the new entries, now and then or *surely*."""
        if self._chance.random() > _OFTEN and not surely:
            return
        try:
            for news in self._follower.poll():
                if isinstance(news, tuple):
                    self._gone.update(range(news[0], news[1] + 1))
                    continue
                offsets = news.column("offset").to_pylist()
                if self._shown and offsets and offsets[0] <= next(reversed(self._shown)):
                    raise Violation(f"who follows {self._engine} is shown {offsets[0]} again")
                rows = map(parsed, news.column("source_id").to_pylist())
                self._shown |= dict(zip(offsets, rows, strict=True))
        except (TransporterError, OSError) as error:
            # The log may be away for a moment, or its disk fail. At rest it cannot.
            if surely and self._directory.exists():
                raise Violation(f"who follows {self._engine} fails: {error!r}") from error
            self.begin_again()

    def judge(self, known: dict[int, RowId]) -> None:
        """Check that none of the *known* logged rows was passed over."""
        self.look(surely=True)
        newest: dict[tuple[str, bytes | None], int] = {}
        for offset in sorted(known):
            newest[self._replaced_by(known[offset])] = offset
        for offset, each in self._shown.items():
            if known.get(offset, each) != each:
                raise Violation(f"who follows {self._engine} is shown {each} at {offset}")
        silent = [
            offset
            for offset, each in known.items()
            if self._first <= offset < self._follower.next
            and offset not in self._shown
            and offset not in self._gone
            and newest[self._replaced_by(each)] == offset
        ]
        if silent:
            raise Violation(f"who follows {self._engine} is not shown {ranges_of(silent)}")

    def close(self) -> None:
        """Close the log's open files."""
        self._follower.close()

    def _replaced_by(self, each: RowId) -> tuple[str, bytes | None]:
        """Return the fields that a later row must share with *each* for compaction to drop it."""
        found = row(self._seed, *each)
        return found.namespace, found.key if self._by_key else None
