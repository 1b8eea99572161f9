"""Engines with a ``postgres-cdc`` reader that kill themselves at a point, for tests of the remains.

Run as a program this file is a nursery: it has imported everything, and forks an engine for each
line of its input. An engine is a real feed of a real reader into a real log. It also plays the
application, which changes rows before each poll, so that changes fall between any two steps.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import psycopg
import pytest
from cdc_history import EXPECTED, TABLES, Crowd
from child_paths import python_path
from transporter_adaptors.postgres_cdc import publication, publishing, reader
from transporter_adaptors.postgres_cdc.columns import SCHEMA_TYPE
from transporter_adaptors.postgres_cdc.copier import Copier
from transporter_adaptors.postgres_cdc.lsn import parse_lsn
from transporter_adaptors.postgres_cdc.reader import CdcReader
from transporter_adaptors.postgres_cdc.slot_creation import SlotCreation
from transporter_adaptors.postgres_cdc.watch import Watch
from transporter_adaptors.postgres_cdc.wire import SlotStream

from transporter.engine.backoff import Backoff
from transporter.engine.reading.feed import Feed
from transporter.log.active_segment import ActiveSegment
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.logged_reader import read_positions
from transporter.log.reader_states import FOLDER, ReaderStates
from transporter.pipeline.config import ReaderConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

READER: Final = "shop"
PATIENCE: Final = 60
"""Seconds after which an engine that has not ended is ended by SIGALRM."""
PATIENT: Final = "-c synchronous_commit=local -c lock_timeout=100ms"
"""Options of a session that waits neither for standbys nor, for long, for other sessions."""
KILLED: Final = -signal.SIGKILL
HALTED: Final = 3
"""Exit code of an engine whose reader has stopped at an error."""
FOLLOWED: Final = tuple(table for table in TABLES if table.name in {"ints", "words", "parts"})
ADDED: Final = next(table for table in TABLES if table.name == "days")


@dataclass(frozen=True)
class Life:
    """What an engine is to do.

    Attributes:
        folder: where its log is.
        settings: those of the reader.
        point: where it kills itself, one of :data:`POINTS`. Without one it ends when all is read.
        acts: statements of the application, or names of others of its acts, by poll.
        changes: polls before which the application changes rows at random.
        seed: for these changes.
        watches: whether it looks for other tables before each poll.
        idles: whether it logs each position without messages at once.

    """

    folder: str
    settings: dict[str, Any]
    point: str | None = None
    acts: dict[int, str] = field(default_factory=dict)
    changes: int = 20
    seed: int = 0
    watches: bool = False
    idles: bool = False


class Frame(NamedTuple):
    """An append: its messages, the position behind them, and the byte where it begins.

    ``states`` were kept by then.
    """

    messages: pa.RecordBatch
    position: dict[str, Any]
    begin: int
    states: int

    @property
    def at(self) -> int:
        """The LSN up to which everything is logged with it."""
        return parse_lsn(self.position["at"])

    def has(self, column: str, value: str) -> bool:
        """Return whether a message has this *value* in *column*."""
        return value in self.messages.column(column).to_pylist()


class Call(NamedTuple):
    """A call at a point: the newest frame, the arguments, and the result behind it."""

    frame: Frame | None
    arguments: tuple[Any, ...]
    result: Any = None


def _is_any(_: Call) -> bool:
    return True


def _is_in_append(call: Call) -> bool:
    return call.frame is not None


def _has_state(call: Call) -> bool:
    return call.frame is not None and call.frame.states > 0


def _is_inside(call: Call) -> bool:
    """Return whether the newest frame ends inside of a transaction."""
    return call.frame is not None and "in" in call.frame.position


def _is_inside_a_run_of_one_lsn(call: Call) -> bool:
    return call.frame is not None and call.frame.position.get("in", (0, 0, 0))[2] > 1


def _is_copied(call: Call) -> bool:
    return call.frame is not None and call.frame.has("phase", "copy")


def _is_streamed(call: Call) -> bool:
    """Return whether the newest frame has changes while nothing is copied."""
    if call.frame is None or "copy" in call.frame.position:
        return False
    return call.frame.has("op", "update") and "in" not in call.frame.position


def _is_complete(call: Call) -> bool:
    return call.frame is not None and call.frame.has("phase", "complete")


def _is_truncated(call: Call) -> bool:
    return call.frame is not None and call.frame.has("op", "command")


def _is_idle(call: Call) -> bool:
    return call.frame is not None and call.frame.has("namespace", f"transporter.{READER}")


def _has_result(call: Call) -> bool:
    return call.result is not None


def _has_last_chunk(call: Call) -> bool:
    return call.result is not None and call.result.copy.is_complete


def _has_chunks(call: Call) -> bool:
    """Return whether the newest frame is of the stream, which has not passed all chunks."""
    copies = call.frame.position.get("copy", ()) if call.frame else ()
    return any(copy["f"] for copy in copies) and not _is_copied(call)


def _has_passed(call: Call) -> bool:
    return call.frame is not None and "p" in call.frame.position


def _is_of_states(call: Call) -> bool:
    return FOLDER in Path(call.arguments[2]).parts


def _keeps_new_columns(call: Call) -> bool:
    """Return whether a text of the tables' state, which is kept, has the column that was added."""
    return '"extra"' in call.arguments[2]


def _names_new_columns(call: Call) -> bool:
    """Return whether a file that gets its name is such a state."""
    return _is_of_states(call) and b"extra" in Path(call.arguments[1]).read_bytes()


def _logs_new_columns(call: Call) -> bool:
    """Return whether the newest frame has the entry about such columns."""
    if call.frame is None:
        return False
    columns = (call.frame.messages.column(name).to_pylist() for name in ("content_type", "data"))
    return any(
        kind == SCHEMA_TYPE and b'"extra"' in data for kind, data in zip(*columns, strict=True)
    )


@dataclass(frozen=True)
class Point:
    """A call at which an engine kills itself: before it or *behind*, the *place*-th that counts.

    With *tears* the newest frame is first cut in two, as a failing machine leaves it.
    """

    owner: Any
    name: str
    counts: Callable[[Call], bool] = _is_any
    behind: bool = False
    place: int = 1
    tears: bool = False


def _of_frames(name: str, counts: Callable[[Call], bool], place: int = 1) -> dict[str, Point]:
    """Return the points of the *place*-th frame that *counts*, up to its sync."""
    return {
        f"{name}: frame torn": Point(
            ActiveSegment, "write", counts, behind=True, place=place, tears=True
        ),
        f"{name}: frame written": Point(ActiveSegment, "sync", counts, place=place),
        f"{name}: frame synced": Point(CdcReader, "commit", counts, place=place),
    }


def _of_feedback(name: str, counts: Callable[[Call], bool]) -> dict[str, Point]:
    """Return the points of the first frame that *counts*, behind its sync."""

    def is_of_frame(call: Call) -> bool:
        return counts(call) and call.frame is not None and call.arguments[1] == call.frame.at

    return {
        f"{name}: feedback noted": Point(SlotStream, "report", is_of_frame),
        f"{name}: feedback reported": Point(SlotStream, "report", is_of_frame, behind=True),
    }


OPENING: Final = {
    "before the publication": Point(reader, "ensure_published"),
    "publication created": Point(reader, "ensure_published", behind=True),
    "slot created": Point(SlotCreation, "wait", _has_result, behind=True),
    "state of the tables made": Point(reader, "make_state", behind=True),
    "stream started": Point(SlotStream, "__init__", behind=True),
    "first state begun": Point(RealFileSystem, "rename", _is_of_states),
    "first state kept": Point(ReaderStates, "keep", behind=True),
} | _of_frames("first position", _is_in_append)
COPYING: Final = {
    "description kept": Point(ReaderStates, "keep", behind=True, place=2),
    "description logged": Point(ReaderStates, "drop_others", place=2),
    "first chunk read": Point(Copier, "read_next", _has_result, behind=True),
    "third chunk read": Point(Copier, "read_next", _has_result, behind=True, place=3),
    "chunk read behind a truncate": Point(Copier, "read_next", _has_result, behind=True, place=7),
    "last chunk read": Point(Copier, "read_next", _has_last_chunk, behind=True),
    **_of_frames("chunk", _is_copied, 4),
    **_of_frames("truncate", _is_truncated),
    **_of_frames("changes of copied rows", _has_chunks),
    **_of_frames("complete", _is_complete),
    **_of_frames("last complete", _is_complete, 3),
}
STREAMING: Final = {
    **_of_frames("transactions", _is_streamed, 3),
    **_of_feedback("transactions", _is_streamed),
    **_of_frames("inside", _is_inside),
    **_of_frames("further inside", _is_inside, 4),
    **_of_frames("inside rows of one LSN", _is_inside_a_run_of_one_lsn),
    "columns begun": Point(RealFileSystem, "rename", _names_new_columns),
    "columns kept": Point(ReaderStates, "keep", _keeps_new_columns, behind=True),
    **_of_frames("columns", _logs_new_columns),
    "columns begun inside": Point(RealFileSystem, "rename", _names_new_columns, place=2),
    "columns kept inside": Point(ReaderStates, "keep", _keeps_new_columns, behind=True, place=2),
    **_of_frames("columns inside", _logs_new_columns, 2),
}
UNLOGGED: Final = "idle: not logged"
"""The point behind others' changes, of which no position is logged yet."""
IDLING: Final = {
    UNLOGGED: Point(CdcReader, "poll", place=45),
    **_of_frames("idle", _is_idle),
    **_of_feedback("idle", _is_idle),
}
ADDING: Final = {
    "table published": Point(publishing, "_publish", behind=True),
    "table's state kept": Point(ReaderStates, "keep", behind=True),
    "table's state logged": Point(ReaderStates, "drop_others"),
    "table's first chunk read": Point(Copier, "read_next", _has_result, behind=True),
    **_of_frames("table's chunk", _is_copied, 2),
}
REMOVING: Final = {
    "table left the publication": Point(publication, "drop_tables", behind=True),
    "smaller state kept": Point(ReaderStates, "keep", behind=True),
    **_of_frames("smaller state", _has_state),
    "smaller state logged": Point(ReaderStates, "drop_others"),
}
REPEATING: Final = {
    "slot dropped": Point(reader, "drop_slot", behind=True),
    "new slot created": Point(SlotCreation, "wait", _has_result, behind=True),
    "new state kept": Point(ReaderStates, "keep", behind=True),
    **_of_frames("new position", _is_in_append),
    **_of_frames("repeated chunk", _is_copied, 3),
}
WAITING: Final = "slot begun"
"""The point at which the server is creating the slot, and waits for a transaction."""
HANGING: Final = "a change was passed that no snapshot sees"
POINTS: Final = (
    {
        WAITING: Point(SlotCreation, "wait"),
        HANGING: Point(CdcReader, "commit", _has_passed, place=8),
    }
    | OPENING
    | COPYING
    | STREAMING
    | IDLING
    | ADDING
    | REMOVING
    | REPEATING
)


class Engine:
    """The engine of a life. Belongs to a process of its own."""

    def __init__(self, life: Life) -> None:
        """Prepare *life*, with the calls at its point wrapped."""
        self._life, self._folder = life, Path(life.folder)
        self._frame: Frame | None = None
        self._failures = list[BaseException]()
        self._rest, self._end = threading.Event(), 0
        self._has_reported = threading.Event()  # why its reader has stopped
        self._polls = self._places = self._states = 0
        self._random = random.Random(life.seed)
        dsn = life.settings["dsn"]
        self._application = psycopg.connect(dsn, autocommit=True, options=PATIENT)
        patch = pytest.MonkeyPatch()
        hasty = functools.partial(Backoff, first=0.01, longest=0.02)
        patch.setattr("transporter.engine.reading.reader_condition.Backoff", hasty)
        patch.setattr(reader, "_REPORT_COMMITS", 0.0)
        if life.watches:
            patch.setattr(Watch, "is_due", property(lambda _: True))
        if life.idles:
            patch.setattr(reader, "_IDLE_BYTES", 1)
        self._wrap(ReaderStates, "keep", self._note_state)
        self._wrap(CommitLog, "append", self._note_frame)
        self._wrap(CdcReader, "poll", self._before_poll)
        if life.point is not None:
            self._arm(POINTS[life.point])

    def run(self) -> int:
        """Read until everything is read, and return the exit code."""
        settings = CdcReader.Config.model_validate(self._life.settings)
        config = ReaderConfig(
            name=READER, adaptor="postgres-cdc", settings={}, cls=CdcReader, config=settings
        )
        log = CommitLog.open(self._folder / "log")
        feed = Feed(config, log, self._observe, self._failures.append)
        feed.start()
        while not self._rest.wait(0.01):
            if feed.ended:
                self._has_reported.wait(PATIENCE)
                return HALTED
        feed.stop()
        feed.wait_until_read()
        feed.finish()
        log.close()
        return HALTED if feed.halted else 0

    def _observe(self, event: str, **details: Any) -> None:
        with (self._folder / "events.jsonl").open("a") as file:
            file.write(json.dumps({"event": event, **details}, default=str) + "\n")
        if event == "reader-stopped":
            self._has_reported.set()

    def _wrap(self, owner: Any, name: str, before: Callable[..., None]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*values: Any, **named: Any) -> Any:
            before(*values)
            return original(*values, **named)

        setattr(owner, name, wrapped)

    def _note_frame(
        self, log: CommitLog, messages: pa.RecordBatch, _: str, position: str | None, *__: Any
    ) -> None:
        fields = json.loads(position or "{}")
        self._frame = Frame(messages, fields, log._active.byte, self._states)

    def _note_state(self, *_: Any) -> None:
        self._states += 1

    def _arm(self, point: Point) -> None:
        """Kill this process at *point*."""
        original = getattr(point.owner, point.name)

        @functools.wraps(original)
        def deadly(*values: Any, **named: Any) -> Any:
            if not point.behind:
                self._come_to(point, Call(self._frame, values))
            found = original(*values, **named)
            if point.behind:
                self._come_to(point, Call(self._frame, values, found))
            return found

        setattr(point.owner, point.name, deadly)

    def _come_to(self, point: Point, call: Call) -> None:
        if not point.counts(call):
            return
        self._places += 1
        if self._places < point.place:
            return
        if self._life.point == WAITING:
            threading.Thread(target=self._die_beside_the_slot).start()
            return
        if point.tears:
            assert call.frame is not None
            _tear(call.arguments[0], call.frame.begin)
        self._die()

    def _die_beside_the_slot(self) -> None:
        """Kill this process once the server has begun to create the slot."""
        while not self._application.execute("SELECT 1 FROM pg_replication_slots").fetchall():
            time.sleep(0.01)
        self._die()

    def _die(self) -> None:
        (self._folder / "reached").write_text(str(self._life.point))
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(PATIENCE)

    def _before_poll(self, polled: CdcReader, *_: Any) -> None:
        """Let the application act; behind its last act find out whether everything is read."""
        self._polls += 1
        if act := self._life.acts.get(self._polls):
            self._act(act)
        elif self._polls <= self._life.changes:
            change_rows(self._application, self._random)
        if self._polls <= max([self._life.changes, *self._life.acts]):
            return
        if not self._end:
            # Asynchronous commits may not be written yet, and an empty transaction has no change.
            row = self._application.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            assert row is not None
            self._end = parse_lsn(row[0])
            self._application.execute("SELECT pg_logical_emit_message(true, 'end', '')")
        parts = polled._open_parts
        is_behind = parts._position.at < self._end or parts._handover.copies or parts._pending
        if not is_behind and parts._unlogged_state is None:
            self._rest.set()

    def _act(self, act: str) -> None:
        with self._application.transaction():
            if act == "large":
                change_many(self._application, self._polls)
            elif act == "hang":
                threading.Thread(target=self._hang).start()
            else:
                self._application.execute(act)

    def _hang(self) -> None:
        """Commit by a session that waits for standbys."""
        with psycopg.connect(self._life.settings["dsn"]) as connection:
            connection.execute("UPDATE public.parts SET v = 'hung' WHERE k > 100")


def _tear(active: ActiveSegment, begin: int) -> None:
    """Leave the first half of the newest frame, and blank what is behind it."""
    size = active.path.stat().st_size
    os.truncate(active.path, (begin + active.byte) // 2)
    os.truncate(active.path, size)


def change_rows(connection: psycopg.Connection[Any], rng: random.Random) -> None:
    """Change a few rows in one transaction."""
    crowd = Crowd(None, 0, (), FOLLOWED)  # type: ignore[arg-type]
    with connection.transaction():
        for _ in range(rng.choice((1, 2, 5))):
            with suppress(*EXPECTED), connection.transaction():
                crowd.change(connection, rng)


def change_many(connection: psycopg.Connection[Any], number: int) -> None:
    """Change all rows, and add others of which many have one LSN."""
    connection.execute("UPDATE public.ints SET v = v || '+'")
    connection.execute("DELETE FROM public.words WHERE k LIKE 'z%'")
    with connection.cursor() as cursor, cursor.copy("COPY public.words (k, v) FROM STDIN") as copy:
        for row in range(150):
            copy.write_row((f"many {number} {row}", f"{number}.{row}"))
    connection.execute("UPDATE public.parts SET v = v || '+'")
    connection.execute("UPDATE public.ints SET v = v || '-'")


def logged_at(folder: Path) -> int:
    """Return the LSN up to which everything is in the log, 0 without a position."""
    text = read_positions(folder / "log").get(READER)
    return parse_lsn(json.loads(text)["at"]) if text else 0


class Nursery:
    """A process that forks engines, one after the other."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": python_path()},
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def start(self, life: Life) -> None:
        """Start an engine."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(life)) + "\n")
        self._process.stdin.flush()

    def await_end(self) -> int:
        """Wait until the engine ends, and return its exit code."""
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


def fork_engines() -> None:
    """Fork an engine for each life on standard input, and write how it has ended."""
    for line in sys.stdin:
        fields = json.loads(line)
        acts = {int(poll): act for poll, act in fields.pop("acts").items()}
        if (pid := os.fork()) == 0:
            signal.alarm(PATIENCE)
            code = 1
            try:
                code = Engine(Life(**fields, acts=acts)).run()
            except BaseException:  # noqa: BLE001 - the parent's loop is not to go on here
                traceback.print_exc()
            os._exit(code)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    fork_engines()
