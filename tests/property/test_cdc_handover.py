"""The hand-over from copy to stream, on a model of a server: each key's history is exact.

The model has what makes that hard: commits that are streamed before snapshots see them, log that is
not flushed yet and lost by a crash, numbers of transactions that are given out again, transactions
older than the publication, TRUNCATE, several changes with one LSN, kills of the reader.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from cdc_tools import TRUNCATED, wrong_keys
from transporter_adaptors.postgres_cdc.handover import MAX_CHUNKS, Handover, TableCopy
from transporter_adaptors.postgres_cdc.position import Inside, LoggedPart, Position
from transporter_adaptors.postgres_cdc.snapshots import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc_tools import Event

TABLE = 7
KEYS = 12
TRUNCATES = 0.05
"""The share of changes that are a TRUNCATE."""
ALL = -1
"""The key of a TRUNCATE."""


@dataclass
class Transaction:
    """A transaction: its changes, and how far its end has come."""

    xid: int
    changes: list[tuple[int, int, str, str | None, bool]] = field(default_factory=list)
    """LSN, key, op, value, and whether the table was published then. A TRUNCATE has key -1."""
    commit_lsn: int = 0


class Server:
    """One table of a server, with a clock of LSNs."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.lsn, self.next_xid = 1000, 100
        self.flushed = 1000
        self.published = False
        self.rows: dict[int, str] = {}
        self.open: dict[int, Transaction] = {}
        self.committed: list[Transaction] = []
        """In commit order. Visible ones are those not in ``hidden``."""
        self.hidden: set[int] = set()
        self.locks: dict[int, int] = {}
        self.is_emptied_by: int | None = None
        """The transaction that has the whole table for itself."""
        self.count = 0
        self.floor_xid = 100
        """Transactions up to that were flushed by the server's own bookkeeping."""

    def advance(self) -> int:
        self.lsn += 1
        return self.lsn

    def begin(self) -> None:
        self.open[self.next_xid] = Transaction(self.next_xid)
        self.next_xid += 1

    def visible(self, key: int) -> str | None:
        """Return the committed and visible value of *key*."""
        value = None
        for each in self.committed:
            if each.xid not in self.hidden:
                for _, changed, _, made, _ in each.changes:
                    value = made if changed in {key, ALL} else value
        return value

    def change(self, transaction: Transaction, key: int) -> None:
        """Change *key* if nobody else has locked it."""
        if self.is_emptied_by not in {None, transaction.xid}:
            return
        if self.locks.setdefault(key, transaction.xid) != transaction.xid:
            return
        mine = [made for _, changed, _, made, _ in transaction.changes if changed in {key, ALL}]
        value = mine[-1] if mine else self.visible(key)
        self.count += 1
        made: str | None = f"v{self.count}"
        if value is None:
            op = "insert"
        elif self.rng.random() < 0.3:
            op, made = "delete", None
        else:
            op = "update"
        # Rows of one COPY share an LSN.
        shares = transaction.changes and transaction.changes[-1][0] == self.lsn
        lsn = self.lsn if shares and self.rng.random() < 0.5 else self.advance()
        transaction.changes.append((lsn, key, op, made, self.published))

    def truncate(self, transaction: Transaction) -> None:
        """Empty the table if nobody else has locked any of it."""
        if {*self.locks.values(), self.is_emptied_by} <= {transaction.xid, None}:
            self.is_emptied_by = transaction.xid
            transaction.changes.append((self.advance(), ALL, *TRUNCATED, self.published))

    def commit(self, transaction: Transaction) -> None:
        """Write the commit. It is streamed from now on, and seen later."""
        del self.open[transaction.xid]
        transaction.commit_lsn = self.advance()
        self.committed.append(transaction)
        self.hidden.add(transaction.xid)

    def reveal(self, xid: int) -> None:
        self.hidden.discard(xid)
        self._unlock(xid)

    def _unlock(self, xid: int) -> None:
        self.locks = {key: owner for key, owner in self.locks.items() if owner != xid}
        if self.is_emptied_by == xid:
            self.is_emptied_by = None

    def roll_back(self, transaction: Transaction) -> None:
        del self.open[transaction.xid]
        self._unlock(transaction.xid)

    def snapshot(self) -> Snapshot:
        running = {*self.open, *self.hidden}
        return Snapshot(min(running, default=self.next_xid), self.next_xid, frozenset(running))

    def take_number(self) -> int:
        """Return the number of a transaction without changes, of which a crash may leave none."""
        self.next_xid += 1
        return self.next_xid - 1

    def flush(self) -> None:
        self.flushed = self.lsn

    def crash(self) -> None:
        """Lose what is not flushed. Numbers are given again."""
        self.committed = [each for each in self.committed if each.commit_lsn <= self.flushed]
        self.open.clear()
        self.hidden.clear()
        self.locks.clear()
        self.is_emptied_by = None
        used = max((each.xid for each in self.committed), default=99)
        self.next_xid = max(used + 1, self.floor_xid)
        self.lsn = self.flushed

    def histories(self) -> dict[tuple[str, str], list[Event]]:
        found: dict[tuple[str, str], list[Event]] = defaultdict(list)
        for each in self.committed:
            for _, key, op, made, _ in each.changes:
                for each_key in range(KEYS) if key == ALL else [key]:
                    found["t", f"{each_key:02}"].append((op, made))
        return found

    def published_keys(self) -> set[int]:
        """Return the keys with a change that is in the stream."""
        changes = (change for each in self.committed for change in each.changes)
        return {key for _, key, _, _, is_published in changes if is_published}


Frame = tuple[list[tuple[int, str, str | None]], Position]


class Reader:
    """A reader over the model, which uses the pure parts as the real one does."""

    handover_type: type[Handover] = Handover
    logged_type: type[LoggedPart] = LoggedPart
    waits_for_flush = True

    def __init__(self, server: Server, begun: int, *, copies_odd: bool = True) -> None:
        self.server = server
        self.frames: list[Frame] = []
        self.position = Position("1", 1, server.lsn)
        self.copies_odd = copies_odd
        self.queue = [TableCopy(TABLE, begun, is_repeated=not copies_odd)]
        self.start()

    def start(self) -> None:
        """Begin again at the last durable frame."""
        if self.frames:
            self.position = self.frames[-1][1]
        plain = self.position.handover(self.queue)
        self.handover = self.handover_type(plain.copies, plain.passed, plain.recent)

    def repeat(self) -> None:
        """Begin the copy again, over the rows that are logged."""
        begun = self.server.take_number()
        self.queue = [TableCopy(TABLE, begun, self.queue[0].run + 1, is_repeated=True)]
        self.position = replace(self.position, begun=0, copies=())
        self.handover.copies = {}
        self.handover.begin(self.queue)
        self.log([])

    def log(self, rows: list[tuple[int, str, str | None]]) -> None:
        copies = tuple(self.handover.copies.values())
        begun = 1 if self.handover.copies.get(TABLE) != self.queue[0] else self.position.begun
        self.position = Position.parse(
            str(
                replace(
                    self.position,
                    copies=copies if begun else (),
                    passed=frozenset(self.handover.passed),
                    begun=begun,
                )
            )
        )
        self.frames.append((rows, self.position))

    def copy(self, size: int) -> None:
        """Read a chunk, if one may be read and logged."""
        copy = self.handover.next_table
        if copy is None or self.position.inside is not None or not self.handover.has_room:
            return
        if self.server.is_emptied_by is not None:
            return  # The chunk waits for the lock, and its snapshot comes behind that.
        # An LSN of ours is that of a record; the log's end is behind the last one.
        snapshot, end = self.server.snapshot(), self.server.lsn + 1
        if not self.handover.accepts(copy, snapshot):
            return
        behind = int(copy.boundary[0]) if copy.boundary else -1
        rows = [
            (key, value)
            for key in range(KEYS)
            if key > behind and (value := self.server.visible(key)) is not None
            if self.copies_odd or key % 2 == 0
        ][:size]
        if self.waits_for_flush and self.server.flushed + 1 < end:
            return
        last = (f"{rows[-1][0]:02}",) if rows else None
        self.handover.add_chunk(copy, snapshot, end, last, len(rows), is_last=len(rows) < size)
        self.log([(key, "copy", value) for key, value in rows])

    def stream(self, changes: int) -> None:
        """Log the next changes of the stream, perhaps a part of a transaction."""
        rows: list[tuple[int, str, str | None]] = []
        at, inside, left = self.position.at, self.position.inside, changes
        logged = self.logged_type(inside)
        for each in self.server.committed:
            if each.commit_lsn < at or each.commit_lsn > self.server.flushed:
                continue
            last_lsn, count = 0, 0
            for lsn, key, op, made, is_published in each.changes:
                if not is_published:
                    continue
                count = count + 1 if lsn == last_lsn else 1
                last_lsn = lsn
                if logged.has(each.commit_lsn, lsn):
                    continue
                if not left:
                    break
                left -= 1
                if key == ALL:
                    self.handover.truncate(TABLE, each.xid)
                    rows.append((key, op, made))
                elif self._is_logged(key, each):
                    rows.append((key, op, made))
                inside = Inside(each.commit_lsn, lsn, count)
            else:
                at, inside = each.commit_lsn + 1, None
                continue
            break
        else:
            # As the server's keepalives say: there is nothing more up to here.
            at = self.server.flushed + 1
        self.position = replace(self.position, at=at, inside=inside)
        if inside is None:
            self.handover.pass_chunks(at)
        self.log(rows)

    def _is_logged(self, key: int, transaction: Transaction) -> bool:
        copy = self.handover.copies.get(TABLE)
        rank = sum(int(bound[0]) < key for bound in copy.bounds) if copy else 0
        return self.handover.is_logged(TABLE, rank, transaction.xid, transaction.commit_lsn)

    def histories(self) -> dict[tuple[str, str], list[Event]]:
        found: dict[tuple[str, str], list[Event]] = defaultdict(list)
        for rows, _ in self.frames:
            for key, op, made in rows:
                for each_key in range(KEYS) if key == ALL else [key]:
                    found["t", f"{each_key:02}"].append((op, made))
        return found


def run(
    seed: int,
    kind: type[Reader] = Reader,
    steps: int = 400,
    *,
    repeats: bool = False,
    copies_odd: bool = True,
) -> Reader:
    """Run writers, server and reader from *seed*, until all is at rest.

    The copy begins again now and then if it *repeats*. Only rows with even keys are copied unless
    it *copies_odd*.
    """
    rng = random.Random(seed)
    # A slow copy meets more, and a slow stream is far behind it.
    copying, streaming = rng.choice((0.1, 0.3, 1.0)), rng.choice((0.1, 0.5, 1.0))
    server = Server(rng)
    for _ in range(20):
        act_as_writers(server, rng)
    server.published = True
    server.flush()
    server.floor_xid = server.next_xid
    reader = kind(server, server.take_number(), copies_odd=copies_odd)
    for _ in range(steps):
        act_as_writers(server, rng)
        match rng.randrange(12):
            case 0 | 1 if rng.random() < copying:
                reader.copy(rng.choice((1, 2, 3)))
            case 2 | 3 | 4 if rng.random() < streaming:
                reader.stream(rng.choice((1, 2, 50)))
            case 5:
                reader.start()
            case 6 if rng.random() < 0.2:
                server.crash()
                reader.start()
            case 7 if repeats and rng.random() < 0.05:
                reader.repeat()
            case _:
                pass
    come_to_rest(server, reader)
    return reader


def come_to_rest(server: Server, reader: Reader) -> None:
    """End what runs, and let *reader* take the rest."""
    for each in [*server.open.values()]:
        server.roll_back(each)
    for xid in [*server.hidden]:
        server.reveal(xid)
    for _ in range(60):
        server.flush()
        reader.stream(50)
        reader.copy(3)
    assert reader.handover.copies == {}, "the copy does not end"


def act_as_writers(server: Server, rng: random.Random) -> None:
    """Take one step of the server's other clients."""
    match rng.randrange(8):
        case 0 if len(server.open) < 4:
            server.begin()
        case 1 | 2 | 3 if server.open and rng.random() < TRUNCATES:
            server.truncate(rng.choice([*server.open.values()]))
        case 1 | 2 | 3 if server.open:
            server.change(rng.choice([*server.open.values()]), rng.randrange(KEYS))
        case 4 if server.open:
            each = rng.choice([*server.open.values()])
            server.commit(each) if rng.random() < 0.85 else server.roll_back(each)
        case 5 if server.hidden:
            server.reveal(rng.choice(sorted(server.hidden)))
        case 6:
            server.flush()
        case _:
            pass


def wrong(reader: Reader) -> Any:
    """Return the keys whose history in the log is wrong."""
    return wrong_keys(reader.server.histories(), reader.histories())


SEEDS = 100


@pytest.mark.parametrize("part", range(4))
def test_each_keys_history_is_exact(part: int) -> None:
    """A copied row stands for all before it, and each later change comes once and in order."""
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        assert wrong(run(seed)) == {}, f"seed {seed}"


def ends_wrong(reader: Reader) -> list[tuple[str, str]]:
    """Return the keys whose last entry is not their state.

    A row that is not copied shows only by its changes.
    """
    logged, streamed = reader.histories(), reader.server.published_keys()
    found = []
    for number in range(KEYS):
        key = "t", f"{number:02}"
        if number % 2 and not reader.copies_odd and not streamed & {number, ALL}:
            continue
        last = logged[key][-1][1] if logged.get(key) else None
        if last != reader.server.visible(number):
            found.append(key)
    return found


def test_a_table_that_is_copied_again_ends_right() -> None:
    """In a later run rows may go back for a moment. The last entry of each key is its state."""
    for seed in range(2 * SEEDS):
        reader = run(seed, repeats=True)
        assert ends_wrong(reader) == [], f"seed {seed}"


def test_a_table_that_is_copied_in_part_ends_right() -> None:
    """Rows outside of ``copy_where`` are not copied, and each of their changes is logged."""
    for seed in range(2 * SEEDS):
        assert ends_wrong(run(seed, copies_odd=False)) == [], f"seed {seed}"


def test_a_number_that_a_crash_has_taken_is_not_waited_for() -> None:
    """On a quiet server nobody takes it again, so the copy would never begin (rule 1)."""
    server = Server(random.Random(0))
    server.published = True
    reader = Reader(server, server.take_number())
    server.crash()
    reader.start()
    reader.copy(3)
    assert reader.handover.copies[TABLE].is_complete


def test_the_copy_waits_for_a_stream_that_is_behind() -> None:
    """There are few chunks that the stream has not passed, so the position stays short (rule 5)."""
    copy, many = TableCopy(TABLE, 1), Snapshot(2, 9_000, frozenset(range(2, 9_000)))
    full = copy.add_chunk(many, 10, ("1",), 1, is_last=False)
    assert not Handover({TABLE: full}).has_room
    # All copies together have so many.
    handover = Handover({TABLE: copy, TABLE + 1: TableCopy(TABLE + 1, 1)})
    for number in range(1_000):
        if handover.has_room:
            turn = handover.copies[TABLE + number % 2]
            key = (f"{number}",)
            handover.add_chunk(turn, Snapshot(2, 2), number, key, 1, is_last=False)
    assert sum(len(each.chunks) for each in handover.copies.values()) == MAX_CHUNKS
    handover.pass_chunks(0)
    assert handover.has_room


class NoWait(Reader):
    """Logs a chunk without waiting for the server's flush (rule 3)."""

    waits_for_flush = False


class _Repeating(LoggedPart):
    """Takes no change of a transaction that comes again for logged."""

    def has(self, commit_lsn: int, change_lsn: int) -> bool:
        LoggedPart.has(self, commit_lsn, change_lsn)
        return False


class _Skipping(LoggedPart):
    """Takes all changes at the LSN of the last logged one for logged."""

    def has(self, commit_lsn: int, change_lsn: int) -> bool:
        inside = self._inside
        return (
            inside is not None
            and commit_lsn == inside.commit_lsn
            and change_lsn <= inside.change_lsn
        )


class NothingLogged(Reader):
    """Logs a transaction of which a part is logged from its beginning."""

    logged_type = _Repeating


class OneAtAnLsn(Reader):
    """Knows the place in a transaction by the LSN alone."""

    logged_type = _Skipping


def mutant(**methods: Callable[..., Any]) -> type[Reader]:
    """Return a reader whose hand-over has other *methods*."""
    made = type("Mutant", (Handover,), methods)
    return type("MutantReader", (Reader,), {"handover_type": made})


def _accepts_all(_: Handover, copy: TableCopy, snapshot: Snapshot) -> bool:
    return copy.boundary is not None or not snapshot.xmin <= copy.begun < snapshot.xmax


def _accepts_any_first(self: Handover, _: TableCopy, snapshot: Snapshot) -> bool:
    self.see(snapshot)
    return not self.passed


def _logs_within_chunks(self: Handover, oid: int, rank: int, xid: int, commit_lsn: int) -> bool:
    copy = self.copies.get(oid)
    if copy is None or copy.is_complete or rank < len(copy.bounds):
        return True
    return Handover.is_logged(self, oid, rank, xid, commit_lsn)


def _logs_beyond(self: Handover, oid: int, rank: int, xid: int, commit_lsn: int) -> bool:
    copy = self.copies.get(oid)
    if copy is not None and not copy.is_complete and rank >= len(copy.bounds):
        return True
    return Handover.is_logged(self, oid, rank, xid, commit_lsn)


def _drops_within_chunks(self: Handover, oid: int, rank: int, xid: int, commit_lsn: int) -> bool:
    copy = self.copies.get(oid)
    if copy is not None and rank and copy.chunks and rank <= len(copy.bounds) - 1:
        return False
    return Handover.is_logged(self, oid, rank, xid, commit_lsn)


def _drops_in_repeats(self: Handover, oid: int, rank: int, xid: int, commit_lsn: int) -> bool:
    copy = self.copies.get(oid)
    if copy is None or not copy.is_repeated:
        return Handover.is_logged(self, oid, rank, xid, commit_lsn)
    plain = Handover({oid: replace(copy, is_repeated=False)}, self.passed, self.recent)
    return plain.is_logged(oid, rank, xid, commit_lsn)


def _forgets_chunks(self: Handover, lsn: int) -> list[int]:
    return Handover.pass_chunks(self, lsn + 20)


def _ends_at_the_last_chunk(self: Handover, lsn: int) -> list[int]:
    found = Handover.pass_chunks(self, lsn)
    ended = [oid for oid, copy in self.copies.items() if copy.is_complete]
    for oid in ended:
        del self.copies[oid]
    return found + ended


def _goes_on(_: Handover, __: int, ___: int) -> None:
    """Leave the copy of a table that is empty now as it is."""


def _begins_plainly(self: Handover, oid: int, xid: int) -> None:
    Handover.truncate(self, oid, xid)
    if (copy := self.copies.get(oid)) is not None:
        self.copies[oid] = replace(copy, is_repeated=False)


MUTANTS = {
    "1: the first chunk waits for nobody": mutant(accepts=_accepts_any_first),
    "2: a chunk does not wait for what was passed": mutant(accepts=_accepts_all),
    "3: a chunk does not wait for the flush": NoWait,
    "4: what a chunk has seen is logged": mutant(is_logged=_logs_within_chunks),
    "4: what a chunk has not seen is dropped": mutant(is_logged=_drops_within_chunks),
    "4: what is beyond the boundary is logged": mutant(is_logged=_logs_beyond),
    "5: chunks are forgotten too soon": mutant(pass_chunks=_forgets_chunks),
    "6: a table is in sync with its last chunk": mutant(pass_chunks=_ends_at_the_last_chunk),
    "7: the copy goes on behind a TRUNCATE": mutant(truncate=_goes_on),
    "in: a transaction is logged again": NothingLogged,
    "in: changes of one LSN are one": OneAtAnLsn,
}


def fails(kind: type[Reader], seeds: int) -> bool:
    """Return whether a history is wrong, or a copy does not end, with one of so many *seeds*."""
    try:
        return any(wrong(run(seed, kind)) for seed in range(seeds))
    except AssertionError:
        return True


@pytest.mark.parametrize("name", MUTANTS)
def test_each_rule_is_needed(name: str) -> None:
    """Without any of the rules some history is wrong, or the copy does not end."""
    assert fails(MUTANTS[name], 4 * SEEDS)


def test_a_repeated_copy_drops_nothing() -> None:
    """Rule 4 for rows that are in the log already: with a change dropped some end is wrong."""
    kind = mutant(is_logged=_drops_in_repeats)
    assert any(ends_wrong(run(seed, kind, repeats=True)) for seed in range(4 * SEEDS))


def test_a_copy_in_part_stays_one_behind_a_truncate() -> None:
    """Rule 7 for a copy of some rows: begun again as a plain one it loses the others."""
    kind = mutant(truncate=_begins_plainly)
    assert any(ends_wrong(run(seed, kind, copies_odd=False)) for seed in range(4 * SEEDS))
