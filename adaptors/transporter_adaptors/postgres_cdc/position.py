"""The position of a reader: how far stream and copy are in the log. Pure.

It is in every append, so it is short. What rarely changes is in the tables' state, which the
position names.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from transporter.errors import EnvironmentFault
from transporter_adaptors.postgres_cdc.handover import Chunk, Handover, TableCopy
from transporter_adaptors.postgres_cdc.lsn import format_lsn, parse_lsn
from transporter_adaptors.postgres_cdc.snapshots import Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transporter_adaptors.postgres_cdc.handover import Key

_VERSION: Final = 1


class Inside(NamedTuple):
    """The place in a transaction of which a part is logged.

    That are its changes before the LSN ``change_lsn``, and the first ``passed`` at it: several may
    have the same. The server sends the transaction again from its beginning.
    """

    commit_lsn: int
    change_lsn: int
    passed: int


@dataclass(frozen=True, slots=True)
class Position:
    """All that the log has up to an append.

    Attributes:
        system_id: the server.
        timeline: its timeline.
        at: the LSN behind the last transaction that is logged as a whole.
        inside: the place in the transaction behind it, if a part of that is logged.
        state: the name of the tables' state.
        begun: how many tables of the state's queue have begun to be copied.
        copies: the copies under way, or not passed by the stream yet.
        passed: see :class:`~transporter_adaptors.postgres_cdc.handover.Handover`.
        gone: the same, as pairs.

    """

    system_id: str
    timeline: int
    at: int
    inside: Inside | None = None
    state: str = ""
    begun: int = 0
    copies: tuple[TableCopy, ...] = ()
    passed: frozenset[int] = field(default_factory=frozenset)
    gone: tuple[tuple[int, int], ...] = ()

    @property
    def reached(self) -> int:
        """The LSN that a server must have flushed to have all that is logged."""
        ends = [chunk.end for copy in self.copies for chunk in copy.chunks]
        # A commit's LSN is where its record begins.
        inside = [self.inside.commit_lsn + 1] if self.inside else []
        return max([self.at, *ends, *inside])

    def __str__(self) -> str:
        fields: dict[str, Any] = {
            "v": _VERSION,
            "srv": f"{self.system_id}/{self.timeline}",
            "at": format_lsn(self.at),
            "st": self.state,
        }
        if self.inside is not None:
            commit, change, passed = self.inside
            fields["in"] = [format_lsn(commit), format_lsn(change), passed]
        if self.begun:
            fields["n"] = self.begun
        if self.copies:
            fields["copy"] = [_copy_fields(copy) for copy in self.copies]
        if self.passed:
            fields["p"] = sorted(self.passed)
        if self.gone:
            fields["g"] = [[oid, format_lsn(end)] for oid, end in self.gone]
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read what ``str`` has made.

        Raises:
            EnvironmentFault: another version or another adaptor wrote it.

        """
        try:
            fields = json.loads(text)
            version = fields["v"]
            if version != _VERSION:
                raise EnvironmentFault(
                    f"the position in the log has format {version}, and this transporter reads "
                    f"{_VERSION}; use the version that wrote it"
                )
            system_id, timeline = fields["srv"].split("/")
            inside = fields.get("in")
            return cls(
                system_id,
                int(timeline),
                parse_lsn(fields["at"]),
                inside and Inside(parse_lsn(inside[0]), parse_lsn(inside[1]), int(inside[2])),
                fields["st"],
                int(fields.get("n", 0)),
                tuple(map(_copy_of, fields.get("copy", ()))),
                frozenset(map(int, fields.get("p", ()))),
                tuple((int(oid), parse_lsn(end)) for oid, end in fields.get("g", ())),
            )
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise EnvironmentFault(
                "the position in the log is not one of postgres-cdc: another adaptor had this "
                "reader's name; give the reader another name"
            ) from error

    def handover(self, queue: Sequence[TableCopy]) -> Handover:
        """Return the state of the hand-over. *queue* has all tables to copy, in their order."""
        found = Handover(passed=set(self.passed), gone=dict(self.gone))
        found.begin([*self.copies, *queue[self.begun :]])
        return found


def _copy_fields(copy: TableCopy) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "t": copy.oid,
        "F": copy.begun,
        "run": copy.run,
        "last": copy.boundary,
        "rows": copy.rows,
        "f": [[chunk.low, str(chunk.snapshot), format_lsn(chunk.end)] for chunk in copy.chunks],
    }
    return fields | ({"e": 1} if copy.is_complete else {}) | ({"r": 1} if copy.is_repeated else {})


def _copy_of(fields: dict[str, Any]) -> TableCopy:
    return TableCopy(
        int(fields["t"]),
        int(fields["F"]),
        int(fields["run"]),
        bool(fields.get("r")),
        _key_of(fields["last"]),
        int(fields["rows"]),
        tuple(
            Chunk(_key_of(low), Snapshot.parse(snapshot), parse_lsn(end))
            for low, snapshot, end in fields["f"]
        ),
        bool(fields.get("e")),
    )


def _key_of(values: list[str] | None) -> Key | None:
    if values is not None and {*map(type, values)} != {str}:
        raise TypeError
    return None if values is None else tuple(values)


class LoggedPart:
    """Recognises the changes of a transaction that are logged already, when it comes again."""

    def __init__(self, inside: Inside | None) -> None:
        """Expect the transaction of *inside* first, if there is one."""
        self._inside, self._seen = inside, 0

    def has(self, commit_lsn: int, change_lsn: int) -> bool:
        """Return whether the next change, at *change_lsn* in this transaction, is logged."""
        if self._inside is None or commit_lsn != self._inside.commit_lsn:
            return False
        if change_lsn < self._inside.change_lsn:
            return True
        if change_lsn > self._inside.change_lsn or self._seen >= self._inside.passed:
            return False
        self._seen += 1
        return True

    def has_message(self, commit_lsn: int, lsn: int) -> bool:
        """Return whether the logical message at *lsn* in this transaction is logged.

        Messages come before the changes at their LSN.
        """
        inside = self._inside
        return inside is not None and commit_lsn == inside.commit_lsn and lsn <= inside.change_lsn
