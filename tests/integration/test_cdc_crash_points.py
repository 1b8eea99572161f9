"""An engine with a ``postgres-cdc`` reader that is killed between any two of its durable steps."""

from __future__ import annotations

import json
import random
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

import pytest
from cdc_crash_points import (
    ADDED,
    ADDING,
    COPYING,
    FOLLOWED,
    HALTED,
    HANGING,
    IDLING,
    KILLED,
    OPENING,
    PATIENT,
    READER,
    REMOVING,
    REPEATING,
    STREAMING,
    UNLOGGED,
    WAITING,
    Life,
    Nursery,
    change_rows,
    logged_at,
)
from cdc_crashes import hanging_commits
from cdc_history import (
    KeyedTable,
    create_tables,
    last_values,
    read_histories,
    real_histories,
    stored_values,
)
from cdc_tools import clean_slots, wrong_keys
from engine_tools import until
from transporter_adaptors.postgres_cdc.columns import SCHEMA_TYPE
from transporter_adaptors.postgres_cdc.lsn import parse_lsn

from transporter.adaptor import Entries
from transporter.log.inspection import inspect
from transporter.log.logged_reader import read_positions
from transporter.log.reader import LogReader
from transporter.log.reader_states import ReaderStates

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from services.postgres import Database

    from transporter.message import Message

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]

PATTERNS: Final = ["public.*", "!public.history", "!public.others"]
ALTERED: Final = (
    "UPDATE public.ints SET v = v || '.'; ALTER TABLE public.ints ADD COLUMN extra int;"
    "UPDATE public.ints SET v = v || ',', extra = 1"
)
ACTS: Final = {
    4: "TRUNCATE public.ints",
    5: "INSERT INTO public.ints SELECT n, 'again ' || n FROM generate_series(-40, 40) n",
    14: "large",
    60: "large",
    64: "ALTER TABLE public.parts ADD COLUMN extra int; UPDATE public.parts SET extra = 1, v = 'w'",
    68: ALTERED,
}
"""A TRUNCATE and a large transaction during the copy, then another one and new columns."""
QUICK: Final = {
    "publication created",
    "slot created",
    "first position: frame written",
    "chunk: frame torn",
    "changes of copied rows: frame synced",
    "last complete: frame torn",
    "transactions: frame torn",
    "further inside: frame torn",
    "inside rows of one LSN: frame synced",
    "columns kept inside",
    "idle: not logged",
    "idle: frame torn",
    "table published",
    "smaller state kept",
    "slot dropped",
}
"""Points of each ``make test``. The others are left to ``make soak``."""
FROM_EMPTY: Final = [True, pytest.param(False, marks=pytest.mark.exhaustive)]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """Yield a process that forks engines."""
    with Nursery() as nursery:
        yield nursery


@pytest.fixture
def source(postgres: Database) -> Iterator[Database]:
    """Yield a database with tables, their history, and a table that nobody reads."""
    create_tables(postgres, FOLLOWED)
    postgres.execute("CREATE TABLE public.others (n int)")
    with clean_slots(postgres):
        yield postgres


class Crashes:
    """Lives of engines, one after the other, over one log."""

    def __init__(self, nursery: Nursery, source: Database, folder: Path) -> None:
        """Read *source* by engines of *nursery* into a log in *folder*."""
        self._nursery, self.source, self.folder = nursery, source, folder
        self.settings: dict[str, Any] = {
            "dsn": source.dsn,
            "tables": PATTERNS,
            "copy_rows": 25,
            "batch_rows": 40,
            "schema": "entries",
        }
        self._lives = 0

    def start(self, point: str | None = None, **settings: Any) -> None:
        """Start an engine that runs until all is read, or it is killed at *point*."""
        self._lives += 1
        life = Life(str(self.folder), self.settings, point, seed=self._lives, **settings)
        self._nursery.start(life)

    def live(self, point: str | None = None, **settings: Any) -> int:
        """Run an engine to its end, and return its exit code."""
        self.start(point, **settings)
        return self._nursery.await_end()

    def die(self, point: str, *, has_new_slot: bool = False, **settings: Any) -> None:
        """Run an engine that is killed at *point*, and change rows behind it.

        Nothing was confirmed then that is not in the log (Invariant 1), unless a new slot begins
        behind it.
        """
        (self.folder / "reached").unlink(missing_ok=True)
        assert self.live(point, **settings) == KILLED
        assert (self.folder / "reached").read_text() == point
        slots = self.source.execute("SELECT confirmed_flush_lsn::text FROM pg_replication_slots")
        if at := logged_at(self.folder):
            confirmed = [parse_lsn(lsn) for (lsn,) in slots]
            assert has_new_slot or max(confirmed) <= at
        rng = random.Random(self._lives)
        with self.source.connect(options=PATIENT) as connection:
            for _ in range(10):
                change_rows(connection, rng)

    def go_on(self, **settings: Any) -> None:
        """Run an engine until all is read."""
        assert self.live(**settings) == 0, self.events("reader-stopped")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the engines' events of this *name*."""
        path = self.folder / "events.jsonl"
        events = map(json.loads, path.read_text().splitlines() if path.exists() else ())
        return [event for event in events if event["event"] == name]

    @property
    def problem(self) -> str:
        """The error at which a reader has stopped last."""
        return self.problems("reader-stopped").splitlines()[-1]

    def problems(self, event: str) -> str:
        """Return the errors of all events of this name, one a line."""
        return "\n".join(found["problem"] for found in self.events(event))

    def messages(self) -> list[Message]:
        """Return everything in the log, but entries about columns."""
        log = self.folder / "log"
        found = inspect(log)
        with LogReader(log) as reader:
            return [
                entry.message
                for batch in reader.read(found.first, found.last)
                for entry in Entries(batch, "")
                if entry.message.content_type != SCHEMA_TYPE
            ]

    def judge(
        self,
        tables: Sequence[KeyedTable] = FOLLOWED,
        *,
        repeated: Collection[str] = (),
        has_gap: bool = False,
        left: Collection[str] = (),
    ) -> None:
        """Check that the log has each change once, in order, and what is at the source.

        Args:
            tables: those that are followed.
            repeated: the names of those that were copied twice.
            has_gap: whether rows may be left that were deleted while no slot was there.
            left: tables in the publication besides.

        """
        messages = self.messages()
        ids = Counter(each.source_id for each in messages if each.source_id is not None)
        assert [each for each, count in ids.items() if count > 1] == []
        followed = {table.name for table in tables}
        logged = read_histories([each for each in messages if _table_of(each) in followed])
        stored = stored_values(self.source, tables)
        last = last_values(logged.events)
        assert {key: last[key] for key in (stored if has_gap else last)} == stored
        exact = {key: each for key, each in logged.events.items() if key[0] not in logged.loose}
        real = real_histories(self.source)
        assert wrong_keys({key: each for key, each in real.items() if key in exact}, exact) == {}
        rows, last_logged = stored_rows(self.source, tables), last_rows(messages, tables)
        assert {key: last_logged[key] for key in (rows if has_gap else last_logged)} == rows
        check_phases(messages, {name: 2 if name in repeated else 1 for name in followed})
        self._check_source({*followed, *left})
        position = json.loads(read_positions(self.folder / "log")[READER])
        assert position["st"] in ReaderStates(self.folder / "log", READER).names()

    def _check_source(self, published: set[str]) -> None:
        query = "SELECT tablename::text FROM pg_publication_tables WHERE pubname = %s"
        name = f"transporter_{READER}"
        assert {each for (each,) in self.source.execute(query, [name])} == published
        assert self.source.execute("SELECT pubname::text FROM pg_publication") == [(name,)]
        ((slot,),) = self.source.execute("SELECT slot_name::text FROM pg_replication_slots")
        assert slot.startswith(f"transporter_{READER}_")


def _table_of(message: Message) -> str:
    return message.namespace.partition(".")[2]


def last_rows(
    messages: Sequence[Message], tables: Sequence[KeyedTable]
) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the last row of each key in the log, without its NULLs."""
    rows = dict[tuple[str, str], dict[str, Any]]()
    names = {table.name for table in tables}
    for message in messages:
        table = _table_of(message)
        if table not in names or message.op == "noop":
            continue
        if message.op == "command":
            rows = {key: row for key, row in rows.items() if key[0] != table}
        elif message.key is not None:
            key = (table, message.key.decode())
            rows.pop(key, None)
            if message.data is not None:
                rows[key] = _without_nulls(json.loads(message.data))
    return rows


def stored_rows(
    database: Database, tables: Sequence[KeyedTable]
) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the row of each key at the source, without its NULLs."""
    return {
        (table.name, key): _without_nulls(row)
        for table in tables
        for key, row in database.execute(
            f"SELECT {table.key_text('t')}, row_to_json(t) FROM public.{table.name} t"
        )
    }


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def check_phases(messages: Sequence[Message], runs: dict[str, int]) -> None:
    """Check that each table was copied in so many *runs*, each of which has one end.

    A TRUNCATE may begin a run again.
    """
    copied, ended = Counter[tuple[str, str]](), defaultdict[str, list[str]](list)
    for message in messages:
        table, run = _table_of(message), "/".join((message.source_id or "").split("/")[:3])
        if message.phase == "copy":
            assert run not in ended[table]
            copied[table, run] += 1
        elif message.phase == "complete":
            assert run not in ended[table]
            assert json.loads(message.data or b"")["copied"] == copied[table, run]
            ended[table].append(run)
        elif message.op == "command" and not run.startswith("copy/"):
            del ended[table][-1:]
    assert {table: len(ended[table]) for table in runs} == runs


@pytest.fixture
def crashes(nursery: Nursery, source: Database, tmp_path: Path) -> Crashes:
    """Return the lives of engines over one log."""
    return Crashes(nursery, source, tmp_path)


def points_of(*groups: dict[str, Any]) -> list[Any]:
    """Return the points of *groups* as parameters. Most are left to ``make soak``."""
    return [
        pytest.param(point, marks=() if point in QUICK else pytest.mark.exhaustive)
        for group in groups
        for point in group
    ]


@pytest.mark.parametrize("point", points_of(OPENING, COPYING, STREAMING))
def test_a_crash_loses_and_repeats_nothing(point: str, crashes: Crashes) -> None:
    """The next engine goes on at the very place, wherever the first one was killed."""
    crashes.die(point, acts=ACTS, changes=70)
    crashes.go_on()
    crashes.judge()


@pytest.mark.parametrize("point", points_of(IDLING))
@pytest.mark.exhaustive
def test_a_crash_at_an_idle_position(point: str, crashes: Crashes) -> None:
    """It is logged before it is confirmed, and the next engine confirms it."""
    crashes.go_on()
    others = "INSERT INTO public.others SELECT generate_series(1, 100)"
    acts = dict.fromkeys(range(1, 50), others)
    crashes.die(point, acts=acts, changes=0, idles=point != UNLOGGED)
    crashes.go_on()
    crashes.judge()


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("point", points_of(ADDING))
@pytest.mark.exhaustive
def test_a_crash_while_a_table_is_added(point: str, live: bool, crashes: Crashes) -> None:
    """It is copied as if nothing had been, and all others go on."""
    crashes.go_on()
    create = (
        f"{ADDED.function}; {ADDED.table};"
        "INSERT INTO public.days SELECT date '2026-01-01' + n, 'day ' || n"
        " FROM generate_series(1, 60) n"
    )
    if live:
        crashes.die(point, acts={5: create}, changes=60, watches=True)
    else:
        crashes.source.execute(create)
        crashes.die(point)
    crashes.source.execute("UPDATE public.days SET v = v || '+' WHERE k < '2026-01-20'")
    crashes.source.execute("DELETE FROM public.days WHERE k > '2026-02-10'")
    crashes.go_on()
    crashes.judge([*FOLLOWED, ADDED])


def test_a_crash_while_the_slot_is_created(crashes: Crashes, nursery: Nursery) -> None:
    """The server goes on without its client: it waits for a transaction that writes."""
    with crashes.source.connect(autocommit=False) as connection:
        connection.execute("UPDATE public.ints SET v = v || '!'")
        crashes.start(WAITING)
        assert nursery.await_end() == KILLED
        crashes.start()
        until(lambda: "is active for PID" in crashes.problems("reader-unavailable"))
    assert nursery.await_end() == 0
    crashes.judge()


@pytest.mark.exhaustive
def test_a_crash_beside_a_commit_that_hangs(crashes: Crashes, nursery: Nursery) -> None:
    """Its change was passed in the stream, so the next copy waits until its snapshot sees it."""
    crashes.die("slot created")  # The publication would wait, too.
    with hanging_commits(crashes.source):
        crashes.die(HANGING, acts={3: "hang"}, changes=60)
        crashes.start()
        until(lambda: len(crashes.events("reader-opened")) == 2)
        time.sleep(1.5)  # The copy would be far beyond by then.
    assert nursery.await_end() == 0
    crashes.judge()


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("point", points_of(REMOVING))
@pytest.mark.exhaustive
def test_a_crash_while_a_table_is_removed(point: str, live: bool, crashes: Crashes) -> None:
    """It has left publication and state behind the next open, also one that is dropped."""
    if live and point == "table left the publication":
        pytest.skip("the server takes a table that is dropped out of its publications")
    crashes.go_on()
    if live:
        crashes.die(point, acts={5: "DROP TABLE public.parts"}, changes=60, watches=True)
    else:
        crashes.settings |= {"tables": [*PATTERNS, "!public.parts"]}
        crashes.die(point)
    crashes.go_on()
    crashes.judge([table for table in FOLLOWED if table.name != "parts"])


@pytest.mark.exhaustive
def test_a_table_that_is_removed_again_after_the_crash(crashes: Crashes) -> None:
    """It was published, and no position knows it: its changes are passed over.

    Nothing says then whether it is another's, so it stays in the publication.
    """
    crashes.go_on()
    create = f"{ADDED.function}; {ADDED.table}"
    crashes.source.execute(create)
    crashes.die("table published")
    crashes.source.execute("INSERT INTO public.days VALUES ('2026-01-01', 'first')")
    crashes.settings |= {"tables": [*PATTERNS, "!public.days"]}
    crashes.go_on()
    crashes.judge(left={"days"})


@pytest.mark.exhaustive
def test_a_table_that_comes_back_after_the_crash_is_a_gap(crashes: Crashes) -> None:
    """Its changes between were never sent, which no later engine passes in silence."""
    crashes.go_on()
    crashes.settings |= {"tables": [*PATTERNS, "!public.parts"]}
    crashes.die("table left the publication")
    crashes.settings |= {"tables": PATTERNS}
    for _ in range(2):
        assert crashes.live() == HALTED
        assert "came back: changes in between were never sent" in crashes.problem
    item = {"table": "parts", "copy_run": 2}
    crashes.settings |= {"tables": [*PATTERNS, item], "copy_from_empty": True}
    crashes.go_on()
    crashes.judge(repeated={"parts"})


@pytest.mark.exhaustive
@pytest.mark.parametrize("from_empty", FROM_EMPTY)
@pytest.mark.parametrize("point", points_of(REPEATING))
def test_a_crash_while_everything_is_copied_again(
    point: str, from_empty: bool, crashes: Crashes
) -> None:
    """The second run is there once, with a slot of its own."""
    crashes.go_on()
    crashes.settings |= {"copy_run": 2, "copy_from_empty": from_empty}
    crashes.die(point, has_new_slot=True)
    crashes.go_on()
    crashes.judge(repeated={table.name for table in FOLLOWED}, has_gap=not from_empty)


def test_a_dropped_slot_is_a_gap_unless_everything_is_copied_again(crashes: Crashes) -> None:
    """An engine that was killed behind the drop of its slot goes on only with the new run."""
    crashes.go_on()
    crashes.settings |= {"copy_run": 2, "copy_from_empty": True}
    crashes.die("slot dropped", has_new_slot=True)
    crashes.settings |= {"copy_run": 1}
    assert crashes.live() == HALTED
    assert "is gone; what was committed since" in crashes.problem
    crashes.settings |= {"copy_run": 2}
    crashes.go_on()
    crashes.judge(repeated={table.name for table in FOLLOWED})


@pytest.mark.exhaustive
@pytest.mark.parametrize("from_empty", FROM_EMPTY)
def test_crashes_while_one_table_is_copied_again(from_empty: bool, crashes: Crashes) -> None:
    """The state with its run and the entry that empties it are in the log together."""
    crashes.go_on()
    item = {"table": "ints", "copy_run": 2}
    crashes.settings |= {"tables": [*PATTERNS, item], "copy_from_empty": from_empty}
    for point in ("new state kept", "new position: frame torn", "new position: frame synced"):
        crashes.die(point)
    crashes.die("repeated chunk: frame torn")
    crashes.go_on()
    crashes.judge(repeated={"ints"})
