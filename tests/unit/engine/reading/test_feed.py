"""The feed: when it acknowledges to the source, which position, and how it meets failures."""

from __future__ import annotations

import errno
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import PATIENCE, Events, until
from log_tools import Disk, offsets_of

from transporter.adaptor import Batch, EndOfSource, state_name
from transporter.engine.backoff import Backoff
from transporter.engine.events import State
from transporter.engine.meters import LATENCY_BOUNDS
from transporter.engine.reading.feed import Feed
from transporter.engine.reading.reader_resume import LogResume
from transporter.errors import BudgetSpent, LogPoisoned, SourceUnavailable
from transporter.log.commit_log import MAX_APPEND, CommitLog, wall_clock
from transporter.log.reader import LogReader
from transporter.message import ERROR_HEADER, Entries, Message
from transporter.offsets.retention_holds import Hold
from transporter.pipeline.config import ReaderConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from transporter.adaptor import Resume


class Script:
    """The steps of a scripted reader: one a poll, then it waits or ends.

    A step is a batch, an exception to raise, or something to call first.
    """

    def __init__(
        self, *steps: Any, opens: tuple[Exception | None, ...] = (), ends: bool = True
    ) -> None:
        self.steps, self.opens, self.ends = list(steps), list(opens), ends
        self.calls: list[tuple[str, object]] = []
        self.at_commit: Callable[[str], None] = lambda _: None

    def called(self, name: str) -> list[object]:
        """Return the arguments of every call of *name*."""
        return [argument for call, argument in self.calls if call == name]


class Scripted:
    """A reader that follows its script."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def open(self, resume: Resume) -> None:
        self._script.calls.append(("open", resume.position))
        if self._script.opens and (error := self._script.opens.pop(0)):
            raise error

    def poll(self, timeout: float) -> Batch:
        if not self._script.steps:
            if self._script.ends:
                raise EndOfSource
            threading.Event().wait(timeout)
            return Batch([])
        step = self._script.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step() if callable(step) else step

    def commit(self, position: str) -> None:
        self._script.at_commit(position)
        self._script.calls.append(("commit", position))

    def close(self) -> None:
        self._script.calls.append(("close", None))


CLOSED = ("close", None)


def some(*texts: str, position: str | None = None) -> Batch:
    """Return a batch of messages with these texts."""
    return Batch([Message("n", text.encode()) for text in texts], position)


class Failures(list[BaseException]):
    """The failures that a feed has reported to its engine."""

    __call__ = list.append


@contextmanager
def feeding(
    log: CommitLog,
    script: Script,
    events: Events | None = None,
    failures: Failures | None = None,
    *,
    fail_fast: bool = False,
    paused_behind: int | None = None,
) -> Iterator[Feed]:
    """Run a feed of *script* into *log* for the length of a ``with`` block."""
    failures = failures if failures is not None else Failures()
    config = ReaderConfig(name="in", adaptor="x", settings={}, cls=Scripted, config=script)
    keys = {"fail_fast": fail_fast, "paused_behind": paused_behind}
    feed = Feed(config, log, events or Events(), failures, **keys)
    feed.start()
    try:
        yield feed
    finally:
        feed.stop()
        feed.finish()


def feed_to_end(log: CommitLog, script: Script, events: Events | None = None) -> Feed:
    """Run a feed until it has ended by itself."""
    with feeding(log, script, events) as feed:
        until(lambda: feed.ended)
    return feed


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again almost at once."""
    monkeypatch.setattr(
        "transporter.engine.reading.reader_condition.Backoff",
        lambda: Backoff(first=0.01, longest=0.02),
    )


def test_a_source_is_told_only_what_is_durable(tmp_path: Path) -> None:
    """``commit`` is called only for positions whose entries are synced (Invariant 1)."""
    disk, seen = Disk(), []
    with CommitLog.open(tmp_path, files=disk) as log:
        script = Script(some("a", "b", position="2"), some("c", position="3"))
        script.at_commit = lambda position: seen.append((position, log.durable, disk.calls[-1][0]))
        feed = feed_to_end(log, script)
    assert seen == [("2", 1, "sync"), ("3", 2, "sync")]
    assert (feed.status().state, feed.status().logged) == (State.ENDED, 3)


def test_nothing_is_committed_when_the_sync_fails(tmp_path: Path) -> None:
    """A failed sync ends the engine with nothing acknowledged to the source (Invariant 1)."""
    disk = Disk()
    failures = Failures()
    with CommitLog.open(tmp_path, files=disk) as log:
        disk.failing["sync"] = OSError(errno.EIO, "Input/output error")
        script = Script(some("a", position="1"))
        with feeding(log, script, failures=failures) as feed:
            until(lambda: feed.ended)
        disk.failing.clear()
    assert script.called("commit") == []
    assert [type(error) for error in failures] == [LogPoisoned]


def test_a_batch_without_a_position_commits_nothing(tmp_path: Path) -> None:
    """Only a position is acknowledged to the source."""
    with CommitLog.open(tmp_path) as log:
        script = Script(some("a"), some(), some("b", position="10"))
        feed_to_end(log, script)
        assert script.called("commit") == ["10"]
        assert log.durable == 1


def test_a_position_without_messages_is_logged_before_it_is_committed(tmp_path: Path) -> None:
    """A source that moves on in silence may forget what is behind, once that is durable."""
    with CommitLog.open(tmp_path) as log:
        script = Script(some(position="9"), some(position="9"), some("b", position="10"))
        script.at_commit = lambda position: assert_logged(log, position)
        feed = feed_to_end(log, script)
        assert script.called("commit") == ["9", "10"]
        assert log.positions == {"in": "10"}
        assert feed.status().logged == 1
    with LogReader(tmp_path) as reader:
        first, second = (each.entries().to_pylist()[0] for each in reader.frames(0, 1))
    assert (first["namespace"], first["op"], first["data"]) == ("transporter.in", "noop", None)
    assert second["data"] == b"b"


def assert_logged(log: CommitLog, position: str) -> None:
    """Check that *position* is durable."""
    assert log.positions == {"in": position}


def test_positions_resume(tmp_path: Path) -> None:
    """A reader is opened with the newest position that was logged, and ``None`` at first."""
    for expected, position in ((None, "a"), ("a", "b"), ("b", "c")):
        with CommitLog.open(tmp_path) as log:
            script = Script(some("x", position=position))
            feed_to_end(log, script)
        assert script.called("open") == [expected]


def test_record_batches_are_taken_as_they_are(
    tmp_path: Path, batch: Callable[..., pa.RecordBatch]
) -> None:
    """A reader may deliver Arrow record batches instead of messages."""
    with CommitLog.open(tmp_path) as log:
        feed_to_end(log, Script(Batch(batch(5), "5")))
        assert (log.durable, log.positions) == (4, {"in": "5"})


def test_a_large_batch_becomes_several_frames_and_the_last_carries_the_position(
    tmp_path: Path,
) -> None:
    """The last frame of a batch carries the position, so a crash repeats the batch."""
    big = "x" * (MAX_APPEND // 3)
    with CommitLog.open(tmp_path) as log:
        feed_to_end(log, Script(some(big, big, big, big, position="4")))
        frames = list(LogResume(log, "in", Events()).recent())
    assert [position for position, _ in frames] == ["4", *[None] * (len(frames) - 1)]
    assert len(frames) > 1
    assert [entries.offsets for _, entries in reversed(frames)] == [[0, 1], [2, 3]]


def test_the_log_tells_a_reader_its_own_batches_newest_first(tmp_path: Path) -> None:
    """``recent`` returns the reader's own batches, newest first, without other readers' entries."""
    with CommitLog.open(tmp_path) as log:
        feed_to_end(log, Script(some("a", position="1"), some("b", "c", position="3")))
        log.append(messages("strange"), "other", "99")
        resume = LogResume(log, "in", Events())
        assert resume.position == "3"
        recent = list(resume.recent())
        assert [(position, entries.offsets) for position, entries in recent] == [
            ("3", [1, 2]),
            ("1", [0]),
        ]
        assert [entry.message.data for entry in recent[0][1]] == [b"b", b"c"]
        assert recent[0][1].entry_id(2) == f"{log.log_id}/2"
        assert list(LogResume(log, "nobody", Events()).recent()) == []


def messages(*texts: str) -> pa.RecordBatch:
    """Return a record batch of messages with these texts."""
    from transporter.message import messages_to_batch  # noqa: PLC0415

    return messages_to_batch([Message("n", text.encode()) for text in texts])


@pytest.mark.usefixtures("_hasty")
def test_a_source_that_is_away_at_the_very_first_open_is_tried_until_it_is_there(
    tmp_path: Path,
) -> None:
    """A source that is unavailable at the first open is retried and reported like a lost one."""
    events, failures, away = Events(), Failures(), SourceUnavailable("no such host")
    with CommitLog.open(tmp_path) as log:
        script = Script(some("a", position="1"), opens=(away, away, None))
        with feeding(log, script, events, failures) as feed:
            until(lambda: feed.ended)
        assert log.durable == 0
    assert script.called("open") == [None] * 3
    assert len(script.called("close")) == 3
    told = events.named("reader-unavailable")
    assert [details["problem"] for details in told] == ["no such host"] * 2
    assert (feed.status().state, feed.status().problem, list(failures)) == (State.ENDED, "", [])


def test_who_asked_for_that_is_told_of_a_source_that_is_away_at_once(tmp_path: Path) -> None:
    """With ``fail_fast`` an unavailable source ends the engine, and the reader is closed."""
    failures = Failures()
    with CommitLog.open(tmp_path) as log:
        script = Script(opens=(SourceUnavailable("no such host"),))
        with feeding(log, script, failures=failures, fail_fast=True) as feed:
            until(lambda: feed.ended)
    assert [str(error) for error in failures] == ["no such host"]
    assert (feed.status().state, feed.status().problem) == (State.STOPPED, "no such host")
    assert script.calls == [("open", None), ("close", None)]


@pytest.mark.usefixtures("_hasty")
def test_a_source_that_goes_away_later_is_tried_until_it_is_back(tmp_path: Path) -> None:
    """A lost source is closed, opened again after a delay, and read from its last position."""
    events = Events()
    with CommitLog.open(tmp_path) as log:
        away = SourceUnavailable("gone")
        script = Script(
            some("a", position="1"), away, some("b", position="2"), opens=(None, away, away, None)
        )
        feed = feed_to_end(log, script, events)
        assert log.durable == 1
    assert script.called("open") == [None, "1", "1", "1"]
    assert len(script.called("close")) == 4
    told = events.named("reader-unavailable")
    assert [details["problem"] for details in told] == ["gone"] * 3
    assert feed.status().problem == ""


def test_a_stop_ends_the_wait_for_a_lost_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop ends the wait for a retry at once."""
    monkeypatch.setattr(
        "transporter.engine.reading.reader_condition.Backoff",
        lambda: Backoff(first=600, longest=600),
    )
    events = Events()
    with CommitLog.open(tmp_path) as log:
        script = Script(SourceUnavailable("gone"))
        with feeding(log, script, events) as feed:
            events.await_count("reader-unavailable")
            assert feed.status().state is State.RETRYING
        assert script.called("close") == [None]


@pytest.mark.usefixtures("_hasty")
def test_a_full_disk_holds_the_reader_back_until_there_is_room(tmp_path: Path) -> None:
    """On a full disk the batch waits visibly, and is logged once with room (Invariant 14)."""
    disk, events = Disk(), Events()
    with CommitLog.open(tmp_path, files=disk) as log:
        disk.failing["pwrite"] = OSError(errno.ENOSPC, "No space left on device")
        script = Script(some("a", "b", position="2"), some("c", position="3"), ends=False)
        with feeding(log, script, events) as feed:
            events.await_count("log-full", 3)
            assert feed.status().state is State.WAITING
            assert script.called("commit") == []
            disk.failing.clear()
            until(lambda: len(script.called("commit")) == 2)
            assert feed.status().state is State.RUNNING
            assert feed.status().problem == ""
    assert offsets_of(tmp_path) == [0, 1, 2]


@pytest.mark.usefixtures("_hasty")
def test_a_state_is_durable_before_the_position_that_names_it(tmp_path: Path) -> None:
    """A state waits for room as its batch does, and replaces the last when that is durable."""
    disk, events = Disk(), Events()
    batches = [
        replace(some(text, position=state_name(text)), state=text) for text in ("old", "new")
    ]
    with CommitLog.open(tmp_path, files=disk) as log:
        states = LogResume(log, "in", Events())
        script = Script(*batches, ends=False)
        script.at_commit = lambda position: assert_kept(states, position)
        disk.failing_at = ("pwrite", f"{state_name('new')}.tmp", OSError(errno.ENOSPC, "full"))
        with feeding(log, script, events):
            events.await_count("log-full", 2)
            assert states.position == state_name("old")
            assert_kept(states, state_name("old"))
            disk.failing_at = None
            until(lambda: len(script.called("commit")) == 2)
        assert [*states.states.names()] == [state_name("new")]


def assert_kept(resume: LogResume, position: str) -> None:
    """Check that the state of *position* is there."""
    assert state_name(resume.state(position)) == position


@pytest.mark.usefixtures("_hasty")
def test_a_reader_that_waits_for_room_holds_nothing_that_others_log_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that waits for room does not hold the entries that others log (Invariant 14)."""
    append = CommitLog.append

    def full_for_one(log: CommitLog, messages: pa.RecordBatch, reader: str, *rest: Any) -> Any:
        if reader == "in":
            raise BudgetSpent("full, for the test")
        return append(log, messages, reader, *rest)

    monkeypatch.setattr(CommitLog, "append", full_for_one)
    with CommitLog.open(tmp_path) as log:
        script = Script(some("a", position="1"), ends=False)
        with feeding(log, script) as feed:
            until(lambda: feed.status().state is State.WAITING)
            log.append(messages("b", "c"), "other")
            until(lambda: feed.hold() == Hold(1, "in", "reader"))


@pytest.mark.usefixtures("_hasty")
def test_a_stop_while_the_disk_is_full_commits_nothing(tmp_path: Path) -> None:
    """A batch that could not be logged is not acknowledged to the source."""
    disk, events = Disk(), Events()
    with CommitLog.open(tmp_path, files=disk) as log:
        disk.failing["pwrite"] = OSError(errno.ENOSPC, "No space left on device")
        script = Script(some("a", position="1"))
        with feeding(log, script, events):
            events.await_count("log-full")
        disk.failing.clear()
        assert log.durable == -1
    assert script.called("commit") == []


def test_the_end_of_a_source_ends_its_feed(tmp_path: Path) -> None:
    """A source that has ended is closed, and its feed ends without a failure."""
    events, failures = Events(), Failures()
    with CommitLog.open(tmp_path) as log:
        script = Script(some("a", position="1"))
        with feeding(log, script, events, failures) as feed:
            events.await_count("reader-ended")
            until(lambda: feed.ended)
    assert events.named("reader-ended") == [{"reader": "in", "logged": 1}]
    assert (failures, script.calls[-1]) == ([], ("close", None))


def test_a_stop_still_commits_what_was_polled(tmp_path: Path) -> None:
    """A batch that was polled when the stop came is appended and acknowledged to the source."""
    with CommitLog.open(tmp_path) as log:
        script = Script(some("a", position="1"), ends=False)
        inside, go_on = threading.Event(), threading.Event()
        step = script.steps[0]

        class Slow(Scripted):
            def poll(self, timeout: float) -> Batch:
                inside.set()
                go_on.wait(PATIENCE)
                return step

        config = ReaderConfig(name="in", adaptor="x", settings={}, cls=Slow, config=script)
        feed = Feed(config, log, Events(), Failures())
        feed.start()
        assert inside.wait(PATIENCE)
        feed.stop()
        go_on.set()
        feed.finish()
        assert log.durable == 0
    assert script.called("commit") == ["1"]


def test_an_error_of_a_reader_after_its_start_stops_that_reader_alone(tmp_path: Path) -> None:
    """A reader that raises an unexpected error halts visibly and does not end the engine."""
    events, failures = Events(), Failures()
    with CommitLog.open(tmp_path) as log:
        script = Script(some("a", position="1"), ZeroDivisionError("oops"))
        with feeding(log, script, events, failures) as feed:
            until(lambda: feed.ended)
        assert log.durable == 0
    assert feed.halted
    assert feed.status().problem == "ZeroDivisionError: oops"
    assert failures == []
    assert len(events.named("reader-stopped")) == 1


def test_a_paused_reader_appends_what_it_polled_and_is_closed_until_it_is_resumed(
    tmp_path: Path,
) -> None:
    """A paused reader polls nothing, and its next open goes on at the logged position."""
    events, polled, go = Events(), threading.Event(), threading.Event()

    class Slow(Script):
        def at(self) -> Batch:
            polled.set()
            assert go.wait(PATIENCE)
            return some("a", position="1")

    script = Slow(ends=False)
    script.steps = [script.at, some("b", position="2")]
    with CommitLog.open(tmp_path) as log, feeding(log, script, events) as feed:
        assert polled.wait(PATIENCE)
        feed.pause()
        assert not feed.settled
        go.set()
        until(lambda: feed.settled)
        assert (log.durable, script.calls) == (0, [("open", None), ("commit", "1"), CLOSED])
        assert feed.status().state is State.PAUSED
        assert feed.hold() is None
        feed.resume()
        until(lambda: log.durable == 1)
        assert script.called("open") == [None, "1"]
        assert (feed.settled, feed.status().state) == (True, State.RUNNING)
    told = ("reader-opened", "reader-paused", "reader-resumed", "reader-opened", "reader-ended")
    assert [name for name, _ in events.all] == list(told)


def test_a_reader_that_is_paused_from_the_start_is_not_opened(tmp_path: Path) -> None:
    """A reader paused from the start holds only what its source may redeliver."""
    failures = Failures()
    with CommitLog.open(tmp_path) as log:
        log.append(messages("a", "b", "c"), "in", "3")
        script = Script(opens=(ZeroDivisionError("oops"),))
        with feeding(log, script, failures=failures, paused_behind=1) as feed:
            until(lambda: feed.settled)
            assert (script.calls, feed.hold()) == ([], Hold(1, "in", "reader"))
            assert not feed.ended
            feed.resume()
            until(lambda: feed.halted)
    assert failures == [], "only an error at the start of an engine ends it"


def test_a_pause_ends_the_wait_for_a_lost_source(tmp_path: Path) -> None:
    """A pause closes a reader that waits for a retry, and a resume opens it."""
    script = Script(*[SourceUnavailable("away")] * 8, ends=False)
    with CommitLog.open(tmp_path) as log, feeding(log, script) as feed:
        until(lambda: feed.status().state is State.RETRYING)
        feed.pause()
        until(lambda: feed.settled)
        assert feed.status().state is State.PAUSED
        script.steps = [some("a", position="1")]
        feed.resume()
        until(lambda: log.durable == 0)


def test_a_stop_releases_nothing_that_the_source_redelivers(tmp_path: Path) -> None:
    """A reader that was stopped before it could be opened holds its logged entries (Invariant 11).

    Retention goes on while the routes end, and a later open must recognise what comes again.
    """
    with CommitLog.open(tmp_path) as log:
        log.append(messages("a", "b"), "in", "2")
        away = Script(*[SourceUnavailable("away")] * 8, opens=[SourceUnavailable("away")] * 8)
        with feeding(log, away) as feed:
            until(lambda: feed.status().state is State.RETRYING)
        assert (feed.status().state, feed.hold()) == (State.ENDED, Hold(-1, "in", "reader"))
        with feeding(log, Script()) as feed:
            until(lambda: feed.ended)
        assert feed.hold() is None, "the source has ended"


@pytest.mark.parametrize("stopped", [False, True])
def test_a_restart_opens_the_reader_again(tmp_path: Path, *, stopped: bool) -> None:
    """A restart opens a running reader in order, and also one that stopped at an error."""
    script = Script(some("a", position="1"), ends=False)
    with CommitLog.open(tmp_path) as log, feeding(log, script) as feed:
        until(lambda: script.called("commit"))
        if stopped:
            script.steps = [ZeroDivisionError("oops")]
            until(lambda: feed.halted)
        assert feed.restart()
        until(lambda: feed.settled)
        assert script.calls[-2:] == [CLOSED, ("open", "1")]
        assert (feed.status().state, feed.status().problem) == (State.RUNNING, "")
        script.steps = [some("b", position="2")]
        until(lambda: script.called("commit") == ["1", "2"])
    assert feed.ended


def test_two_restarts_at_once_begin_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator's restart and a reload that come together never give a reader two threads."""
    both = threading.Barrier(2, timeout=1)

    class Ended:
        """The thread that has ended. Both calls would wait for it together."""

        def join(self, _: float) -> None:
            with suppress(threading.BrokenBarrierError):
                both.wait()

        def is_alive(self) -> bool:
            return False

    script = Script(ZeroDivisionError("oops"), ends=False)
    with CommitLog.open(tmp_path) as log, feeding(log, script) as feed:
        until(lambda: feed.halted)
        feed._thread.join()
        create, created = feed._create_thread, []
        monkeypatch.setattr(feed, "_create_thread", lambda: created.append(create()) or created[-1])
        monkeypatch.setattr(feed, "_thread", Ended())
        callers = [threading.Thread(target=feed.restart) for _ in range(2)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert len(created) == 1
        monkeypatch.undo()
        feed._thread = created[-1]


@pytest.mark.parametrize("at", ["open", "poll"])
def test_a_restart_that_fails_stops_the_reader_again(tmp_path: Path, at: str) -> None:
    """A failed restart is reported at once, does not end the engine and does not delay a stop."""
    failures, again = Failures(), ZeroDivisionError("two")
    script = Script(ZeroDivisionError("one"), opens=(None, again if at == "open" else None))
    script.steps += [again] if at == "poll" else []
    with CommitLog.open(tmp_path) as log, feeding(log, script, failures=failures) as feed:
        until(lambda: feed.halted)
        assert feed.restart()
        until(lambda: feed.settled)
        assert (feed.halted, feed.status().problem) == (True, "ZeroDivisionError: two")
    assert failures == []


def test_a_message_that_no_frame_can_hold_stops_the_reader_with_its_name(tmp_path: Path) -> None:
    """A message whose namespace fits no frame stops the reader, and its batch is not committed."""
    with CommitLog.open(tmp_path) as log:
        script = Script(Batch([Message("n" * (MAX_APPEND + 1), b"")], "1"))
        feed = feed_to_end(log, script)
        assert log.durable == -1
    assert "namespace nn" in feed.status().problem
    assert script.called("commit") == []


def test_a_feed_that_never_started_can_be_joined(tmp_path: Path) -> None:
    """A feed that never started can be stopped and joined."""
    with CommitLog.open(tmp_path) as log:
        script = Script()
        config = ReaderConfig(name="in", adaptor="x", settings={}, cls=Scripted, config=script)
        feed = Feed(config, log, Events(), Failures())
        feed.stop()
        feed.finish()
    assert script.calls == []


def test_a_message_that_no_append_takes_does_not_stop_the_reader(tmp_path: Path) -> None:
    """An error entry takes the place of an oversized message, and the others are logged."""
    large = Message("n", b"x" * MAX_APPEND, source_id="t@id/3/17")
    batch = Batch([Message("n", b"a"), large, Message("n", b"b")], "3")
    script = Script(batch, some("c", position="4"))
    with CommitLog.open(tmp_path) as log:
        feed = feed_to_end(log, script)
        with LogReader(tmp_path) as reader:
            parts = list(reader.read(0, log.durable))
    logged = [entry.message for part in parts for entry in Entries(part)]

    assert feed.status().state == State.ENDED
    assert script.called("commit") == ["3", "4"]
    assert [message.data for message in logged if not message.headers] == [b"a", b"b", b"c"]
    assert [name for name, _ in logged[1].headers] == [ERROR_HEADER]


def test_what_is_logged_counts_with_the_age_that_its_source_gave_it(tmp_path: Path) -> None:
    """An entry's age counts from its source timestamp to the append, and not without one."""
    now = wall_clock()
    times = (now - 40_000_000, now - 2_000_000_000, 0)
    batch = Batch([Message("n", b"", timestamp=each) for each in times], "1")
    with CommitLog.open(tmp_path) as log:
        counts = feed_to_end(log, Script(batch)).status().latency.counts
    found = [LATENCY_BOUNDS[bucket] for bucket, count in enumerate(counts) for _ in range(count)]
    assert found == [60.0, 3600.0]
