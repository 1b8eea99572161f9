"""The hand-over from the copy of a table to its stream, by snapshots. Pure.

The stream runs from the first second. The copy reads chunk after chunk in the order of the key,
each in a snapshot of its own, and puts it between two transactions of the stream. The rules:

1. The first chunk's snapshot sees every transaction that may have begun before the table was
   published: their changes are missing in the stream.
2. A chunk counts only if its snapshot sees every transaction whose change of a key beyond the
   boundary the stream has passed. A commit is streamed before snapshots see it, for example while
   it waits for a synchronous standby.
3. A chunk counts only once the server's log is flushed up to the chunk's end. After a crash of the
   server, transactions that were never flushed lend their numbers to others.
4. A change of a key beyond the boundary is dropped, because a later chunk has it. A change of a key
   in a chunk is dropped if the chunk's snapshot has seen it. Any other is logged. When a table is
   copied again nothing is dropped: a row may go back for a moment, and its end is right. No entry
   can be made of a change from before the table had its present key. All chunks see it.
5. A chunk is forgotten when the stream is past its end, and there are few at a time.
6. After the last chunk the table is complete, and in sync once all its chunks are forgotten.
7. A TRUNCATE before that begins the copy of the table again.

So the log has, at each chunk, exactly the published transactions that its snapshot sees for the
keys up to the boundary, and each later change once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from transporter_adaptors.postgres_cdc.snapshots import widen_xid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transporter_adaptors.postgres_cdc.snapshots import Snapshot

Key = tuple[str, ...]
"""The values of a key's columns, as text."""
MAX_CHUNKS: Final = 32
"""Chunks that the stream has not passed yet. The copy waits for the stream beyond that."""
MAX_RUNNING: Final = 8_000
"""Transactions that the snapshots of these chunks may list together."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk that is logged: keys behind ``low``, up to the next chunk's or the boundary.

    ``end`` is the LSN behind every transaction that its snapshot sees.
    """

    low: Key | None
    snapshot: Snapshot
    end: int


@dataclass(frozen=True, slots=True)
class TableCopy:
    """The copy of one table. ``boundary`` is the last key that was copied.

    The first chunk needs a snapshot that sees all transactions up to ``begun``. ``run`` is the
    number of the copy. One that ``is_repeated`` has earlier rows before it in the log, which
    nothing ended. ``chunks`` are those that the stream has not passed, in their order.
    """

    oid: int
    begun: int
    run: int = 1
    is_repeated: bool = False
    boundary: Key | None = None
    rows: int = 0
    chunks: tuple[Chunk, ...] = ()
    is_complete: bool = False

    @property
    def bounds(self) -> list[Key]:
        """The keys with which those of changes are compared, ascending."""
        edges = [chunk.low for chunk in self.chunks]
        if not self.is_complete:
            edges.append(self.boundary)
        return [edge for edge in edges if edge is not None]

    def add_chunk(
        self, snapshot: Snapshot, end: int, last: Key | None, rows: int, *, is_last: bool
    ) -> TableCopy:
        """Return the copy with a chunk of *rows* rows, up to the key *last*, in it."""
        return replace(
            self,
            boundary=last if last is not None else self.boundary,
            rows=self.rows + rows,
            chunks=(*self.chunks, Chunk(self.boundary, snapshot, end)),
            is_complete=is_last,
        )

    def pass_chunks(self, lsn: int) -> TableCopy:
        """Return the copy without chunks that the stream, at *lsn*, has passed (rule 5)."""
        left = tuple(chunk for chunk in self.chunks if chunk.end > lsn)
        return self if len(left) == len(self.chunks) else replace(self, chunks=left)

    def restart(self, begun: int) -> TableCopy:
        """Return the copy begun again, because of a TRUNCATE (rule 7).

        Its rows are counted on, because the number of a row is in its id. One that is repeated
        stays so: the copy may leave rows out, whose changes nothing else has.
        """
        return TableCopy(self.oid, begun, self.run, self.is_repeated, rows=self.rows)


@dataclass(slots=True)
class Handover:
    """The copies of all tables that are not in sync yet. Not thread-safe.

    ``passed`` are transactions with a change beyond a boundary that the stream has passed, and
    that no snapshot has seen since. ``recent`` is a transaction of late, less than 2³¹ away from
    those in the stream: a table may wait for its copy for longer than that. ``gone`` are tables of
    which a row is not logged under its new key, because it was gone already, with an LSN behind
    its end.
    """

    copies: dict[int, TableCopy] = field(default_factory=dict)
    passed: set[int] = field(default_factory=set)
    recent: int = 0
    gone: dict[int, int] = field(default_factory=dict)

    @property
    def next_table(self) -> TableCopy | None:
        """The table whose next chunk is to be read."""
        return next((copy for copy in self.copies.values() if not copy.is_complete), None)

    @property
    def has_room(self) -> bool:
        """Whether another chunk may be read (rule 5)."""
        chunks = [chunk for copy in self.copies.values() for chunk in copy.chunks]
        running = sum(len(chunk.snapshot.running) for chunk in chunks)
        return len(chunks) < MAX_CHUNKS and running < MAX_RUNNING

    def accepts(self, copy: TableCopy, snapshot: Snapshot) -> bool:
        """Return whether a chunk of *copy* in *snapshot* may be logged (rules 1 and 2)."""
        self.see(snapshot)
        # A number that was not given out yet was lost in a crash of the server, which has ended
        # everything that ran before it.
        if copy.boundary is None and snapshot.xmin <= copy.begun < snapshot.xmax:
            return False
        return not self.passed

    def see(self, snapshot: Snapshot) -> None:
        """Forget transactions that *snapshot* sees, because all later ones see them, too."""
        self.recent = max(self.recent, snapshot.xmax)
        self.passed = {xid for xid in self.passed if not snapshot.sees(xid)}

    def add_chunk(
        self,
        copy: TableCopy,
        snapshot: Snapshot,
        end: int,
        last: Key | None,
        rows: int,
        *,
        is_last: bool,
    ) -> TableCopy:
        """Record a chunk that is going to be logged, and return the table's copy."""
        made = copy.add_chunk(snapshot, end, last, rows, is_last=is_last)
        self.copies[copy.oid] = made
        return made

    def is_logged(self, oid: int, rank: int, xid: int, commit_lsn: int) -> bool:
        """Return whether the stream's change of a key is to be logged (rule 4).

        Args:
            oid: the table.
            rank: how many of the table's ``bounds`` are before the key.
            xid: the transaction, 32 bits.
            commit_lsn: the LSN of its commit.

        """
        copy = self.copies.get(oid)
        if copy is None:
            return True
        chunk = _chunk_of(copy, rank)
        if chunk is None:
            if copy.is_complete or rank < len(copy.bounds):
                return True
            self.passed.add(widen_xid(xid, self.recent))
            return copy.is_repeated
        if copy.is_repeated or chunk.end <= commit_lsn:
            return True
        return not chunk.snapshot.sees(widen_xid(xid, chunk.snapshot.xmax))

    def has_all_of(self, oid: int, xid: int) -> bool:
        """Return whether the copy has every row as transaction *xid* (32 bits) has left it.

        The next chunk has, where it is the first one, because it has to see the transaction.
        """
        copy = self.copies.get(oid)
        if copy is None:
            return False
        if not copy.chunks and copy.boundary is None and not copy.is_complete:
            self.passed.add(widen_xid(xid, self.recent))
            return True
        snapshots = [chunk.snapshot for chunk in copy.chunks]
        return all(each.sees(widen_xid(xid, each.xmax)) for each in snapshots) and bool(snapshots)

    def may_lack_row(self, oid: int, commit_lsn: int) -> bool:
        """Return whether sinks may lack the row of an update, so that a part of it is too little.

        A table that is copied again may have been emptied there.
        """
        copy = self.copies.get(oid)
        return (copy is not None and copy.is_repeated) or commit_lsn < self.gone.get(oid, 0)

    def truncate(self, oid: int, xid: int) -> None:
        """Record that transaction *xid* (32 bits) has emptied the table *oid* (rule 7)."""
        if (copy := self.copies.get(oid)) is not None:
            self.passed.add(widen_xid(xid, self.recent))
            self.copies[oid] = copy.restart(copy.begun)

    def pass_chunks(self, lsn: int) -> list[int]:
        """Forget chunks that the stream, at *lsn*, has passed; return tables in sync (rule 6)."""
        self.gone = {oid: end for oid, end in self.gone.items() if end > lsn}
        in_sync = []
        for oid, copy in [*self.copies.items()]:
            left = self.copies[oid] = copy.pass_chunks(lsn)
            if left.is_complete and not left.chunks:
                del self.copies[oid]
                in_sync.append(oid)
        return in_sync

    def begin(self, copies: Iterable[TableCopy]) -> None:
        """Begin further copies, in this order, behind those under way."""
        for copy in copies:
            self.copies[copy.oid] = copy
            seen = (chunk.snapshot.xmax for chunk in copy.chunks)
            self.recent = max(self.recent, copy.begun, *seen)


def _chunk_of(copy: TableCopy, rank: int) -> Chunk | None:
    """Return the chunk with a key of this *rank*, if it is one of those not passed yet."""
    # A chunk from the very beginning of the table has no lower bound.
    place = rank if copy.chunks and copy.chunks[0].low is None else rank - 1
    return copy.chunks[place] if 0 <= place < len(copy.chunks) else None
