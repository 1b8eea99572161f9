"""The hand-over from copy to stream, on a model of a server: each key's history is exact.

The model has what makes that hard: commits that are streamed before snapshots see them, log that is
not flushed yet and lost by a crash, transactions older than the publication, kills of the reader.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from cdc_tools import wrong_keys
from transporter_adaptors.postgres_cdc.handover import Handover, TableCopy
from transporter_adaptors.postgres_cdc.position import Inside, LoggedPart, Position
from transporter_adaptors.postgres_cdc.snapshots import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc_tools import Event

TABLE = 7
KEYS = 12


@dataclass
class Transaction:
    """A transaction: its changes, and how far its end has come."""

    xid: int
    changes: list[tuple[int, int, str, str | None, bool]] = field(default_factory=list)
    """LSN, key, op, value, and whether the table was published then."""
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
                    value = made if changed == key else value
        return value

    def change(self, transaction: Transaction, key: int) -> None:
        """Change *key* if nobody else has locked it."""
        if self.locks.setdefault(key, transaction.xid) != transaction.xid:
            return
        mine = [made for _, changed, _, made, _ in transaction.changes if changed == key]
        value = mine[-1] if mine else self.visible(key)
        self.count += 1
        made: str | None = f"v{self.count}"
        if value is None:
            op = "insert"
        elif self.rng.random() < 0.3:
            op, made = "delete", None
        else:
            op = "update"
        transaction.changes.append((self.advance(), key, op, made, self.published))

    def commit(self, transaction: Transaction) -> None:
        """Write the commit. It is streamed from now on, and seen later."""
        del self.open[transaction.xid]
        transaction.commit_lsn = self.advance()
        self.committed.append(transaction)
        self.hidden.add(transaction.xid)

    def reveal(self, xid: int) -> None:
        self.hidden.discard(xid)
        self.locks = {key: owner for key, owner in self.locks.items() if owner != xid}

    def roll_back(self, transaction: Transaction) -> None:
        del self.open[transaction.xid]
        xid = transaction.xid
        self.locks = {key: owner for key, owner in self.locks.items() if owner != xid}

    def snapshot(self) -> Snapshot:
        running = {*self.open, *self.hidden}
        return Snapshot(min(running, default=self.next_xid), self.next_xid, frozenset(running))

    def flush(self) -> None:
        self.flushed = self.lsn

    def crash(self) -> None:
        """Lose what is not flushed. Numbers are given again."""
        self.committed = [each for each in self.committed if each.commit_lsn <= self.flushed]
        self.open.clear()
        self.hidden.clear()
        self.locks.clear()
        used = max((each.xid for each in self.committed), default=99)
        self.next_xid = max(used + 1, self.floor_xid)
        self.lsn = self.flushed

    def histories(self) -> dict[tuple[str, str], list[Event]]:
        found: dict[tuple[str, str], list[Event]] = defaultdict(list)
        for each in self.committed:
            for _, key, op, made, _ in each.changes:
                found["t", f"{key:02}"].append((op, made))
        return found


Frame = tuple[list[tuple[int, str, str | None]], Position]


class Reader:
    """A reader over the model, which uses the pure parts as the real one does."""

    handover_type: type[Handover] = Handover
    waits_for_flush = True

    def __init__(self, server: Server, begun: int, run: int = 1) -> None:
        self.server = server
        self.frames: list[Frame] = []
        self.position = Position("1", 1, server.lsn)
        self.queue = [TableCopy(TABLE, begun, run)]
        self.start()

    def start(self) -> None:
        """Begin again at the last durable frame."""
        if self.frames:
            self.position = self.frames[-1][1]
        plain = self.position.handover(self.queue)
        self.handover = self.handover_type(plain.copies, plain.passed)

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
        # An LSN of ours is that of a record; the log's end is behind the last one.
        snapshot, end = self.server.snapshot(), self.server.lsn + 1
        if not self.handover.accepts(copy, snapshot):
            return
        behind = int(copy.boundary[0]) if copy.boundary else -1
        rows = [
            (key, value)
            for key in range(KEYS)
            if key > behind and (value := self.server.visible(key)) is not None
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
        logged = LoggedPart(inside)
        for each in self.server.committed:
            if each.commit_lsn < at or each.commit_lsn > self.server.flushed:
                continue
            bounds = self._bounds()
            for lsn, key, op, made, is_published in each.changes:
                if not is_published or logged.has(each.commit_lsn, lsn):
                    continue
                if not left:
                    break
                left -= 1
                rank = sum(bound < key for bound in bounds)
                if self.handover.is_logged(TABLE, rank, each.xid, each.commit_lsn):
                    rows.append((key, op, made))
                inside = Inside(each.commit_lsn, lsn, 1)
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

    def _bounds(self) -> list[int]:
        copy = self.handover.copies.get(TABLE)
        return [int(bound[0]) for bound in copy.bounds] if copy else []

    def histories(self) -> dict[tuple[str, str], list[Event]]:
        found: dict[tuple[str, str], list[Event]] = defaultdict(list)
        for rows, _ in self.frames:
            for key, op, made in rows:
                found["t", f"{key:02}"].append((op, made))
        return found


def run(seed: int, kind: type[Reader] = Reader, steps: int = 400, runs: int = 1) -> Reader:
    """Run writers, server and reader from *seed*, until all is at rest."""
    rng = random.Random(seed)
    server = Server(rng)
    for _ in range(20):
        act_as_writers(server, rng)
    server.published = True
    server.flush()
    server.floor_xid = server.next_xid + 1
    begun, server.next_xid = server.next_xid, server.next_xid + 1
    reader = kind(server, begun, runs)
    for _ in range(steps):
        act_as_writers(server, rng)
        match rng.randrange(12):
            case 0 | 1:
                reader.copy(rng.choice((1, 2, 3)))
            case 2 | 3 | 4:
                reader.stream(rng.choice((1, 2, 50)))
            case 5:
                reader.start()
            case 6 if rng.random() < 0.2:
                server.crash()
                reader.start()
            case _:
                pass
    for each in [*server.open.values()]:
        server.roll_back(each)
    for xid in [*server.hidden]:
        server.reveal(xid)
    for _ in range(60):
        server.flush()
        reader.stream(50)
        reader.copy(3)
    assert reader.handover.copies == {}, "the copy does not end"
    return reader


def act_as_writers(server: Server, rng: random.Random) -> None:
    """Take one step of the server's other clients."""
    match rng.randrange(8):
        case 0 if len(server.open) < 4:
            server.begin()
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


def test_a_table_that_is_copied_again_ends_right() -> None:
    """In a later run rows may go back for a moment. The last entry of each key is its state."""
    for seed in range(SEEDS):
        reader = run(seed, runs=2)
        real, logged = reader.server.histories(), reader.histories()
        for key, events in real.items():
            # A delete that came before the copy leaves no trace.
            last = logged[key][-1][1] if logged.get(key) else None
            assert last == events[-1][1], f"seed {seed}, key {key}"


class NoWait(Reader):
    """Logs a chunk without waiting for the server's flush (rule 3)."""

    waits_for_flush = False


def mutant(**methods: Callable[..., Any]) -> type[Reader]:
    """Return a reader whose hand-over has other *methods*."""
    made = type("Mutant", (Handover,), methods)
    return type("MutantReader", (Reader,), {"handover_type": made})


def _accepts_all(_: Handover, copy: TableCopy, snapshot: Snapshot) -> bool:
    return copy.boundary is not None or snapshot.xmin > copy.begun


def _accepts_any_first(self: Handover, _: TableCopy, snapshot: Snapshot) -> bool:
    return all(map(snapshot.sees, self.passed))


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


def _forgets_chunks(self: Handover, lsn: int) -> list[int]:
    return Handover.pass_chunks(self, lsn + 20)


MUTANTS = {
    "1: the first chunk waits for nobody": mutant(accepts=_accepts_any_first),
    "2: a chunk does not wait for what was passed": mutant(accepts=_accepts_all),
    "3: a chunk does not wait for the flush": NoWait,
    "4: what a chunk has seen is logged": mutant(is_logged=_logs_within_chunks),
    "4: what is beyond the boundary is logged": mutant(is_logged=_logs_beyond),
    "5: chunks are forgotten too soon": mutant(pass_chunks=_forgets_chunks),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_each_rule_is_needed(name: str) -> None:
    """Without any of the rules some history is wrong."""
    assert any(wrong(run(seed, MUTANTS[name])) for seed in range(4 * SEEDS))
