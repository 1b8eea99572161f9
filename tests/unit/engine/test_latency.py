"""Latency of entries: from their source to the log, and from the log to the ack."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import make_pipeline, run_to_end, running, until

from transporter.engine.meters import LATENCY_BOUNDS, RouteLatency, Timings, add_source_latency
from transporter.log.commit_log import CommitLog, wall_clock
from transporter.log.reader import Append
from transporter.message import Message, messages_to_batch
from transporter.protocol.messages import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from transporter.engine.engine import Engine
    from transporter.engine.meters import Histogram

NOW = 1_700_000_000_000_000
SECOND = 1_000_000
HOUR = 3600 * SECOND


def batch(*times: int) -> pa.Array:
    """Return the timestamp column of messages of these *times*."""
    return messages_to_batch([Message("n", b"", timestamp=each) for each in times])["timestamp"]


def sorted_into(histogram: Histogram) -> dict[float, int]:
    """Return the counts of the buckets that are not empty, by their upper ends."""
    ends = [*histogram.bounds, float("inf")]
    return {end: count for end, count in zip(ends, histogram.counts, strict=True) if count}


def source_latency(times: list[int]) -> Histogram:
    """Return the histogram of messages of these *times*, logged at :data:`NOW`."""
    timings = Timings(LATENCY_BOUNDS)
    add_source_latency(timings, batch(*times), NOW)
    return timings.read()


@pytest.mark.parametrize("rows", [1, 1000])
def test_each_message_counts_with_its_own_age(rows: int) -> None:
    """A message's age is the time since its timestamp, in small batches and in large ones."""
    found = source_latency([NOW - SECOND // 50, NOW - 2 * SECOND, NOW - 2 * HOUR] * rows)
    assert sorted_into(found) == {0.025: rows, 2.5: rows, float("inf"): rows}
    assert found.total == pytest.approx(7202.02 * rows)


@pytest.mark.parametrize("rows", [1, 1000])
def test_an_age_that_is_a_bound_belongs_to_the_bucket_below(rows: int) -> None:
    """A bucket includes its upper end, as in Prometheus."""
    found = source_latency([NOW - 5000, NOW - 5001, NOW - SECOND] * rows)
    assert sorted_into(found) == {0.005: rows, 0.01: rows, 1.0: rows}


@pytest.mark.parametrize("rows", [1, 1000])
def test_a_source_clock_that_is_ahead_counts_as_no_time(rows: int) -> None:
    """A message from the future counts as no time and takes nothing off the sum."""
    found = source_latency([NOW + HOUR, NOW - SECOND] * rows)
    assert sorted_into(found) == {0.005: rows, 1.0: rows}
    assert found.total == pytest.approx(rows)


@pytest.mark.parametrize("rows", [1, 1000])
def test_a_message_without_timestamp_is_not_counted(rows: int) -> None:
    """A message with timestamp 0, which means none, is not counted."""
    assert source_latency([0] * rows).counts == (0,) * (len(LATENCY_BOUNDS) + 1)
    assert sorted_into(source_latency([0, NOW - SECOND] * rows)) == {1.0: rows}


def test_very_old_messages_do_not_overflow() -> None:
    """A large batch of messages that are decades old has a correct sum."""
    assert source_latency([1] * 50_000).total == pytest.approx(NOW / SECOND * 50_000)


class Clock:
    """A wall clock that stands still."""

    def __init__(self, now: int = NOW) -> None:
        self.now = now

    def __call__(self) -> int:
        """Return its time."""
        return self.now


def route_latency(*appends: Append) -> RouteLatency:
    """Return the latency of a route that has just been given a slice of *appends*."""
    latency = RouteLatency(Clock())
    latency.begin(list(appends))
    return latency


def outcome(through: int, delivered: int, skipped: int = 0) -> Outcome:
    """Return the outcome of a slice."""
    return Outcome(through, delivered, skipped, 0, {})


def test_each_append_of_a_slice_counts_with_its_log_time() -> None:
    """Each append of a slice counts with its own log time."""
    latency = route_latency(Append(2, 3, NOW - 20_000), Append(9, 7, NOW - 2 * SECOND))
    latency.settle(outcome(9, 10))
    assert sorted_into(latency.read()) == {0.025: 3, 2.5: 7}
    assert latency.read().total == pytest.approx(14.06)


def test_parts_count_once() -> None:
    """A part's entries are not counted again at the end, also within one append."""
    clock = Clock()
    latency = RouteLatency(clock)
    latency.begin([Append(99, 100, NOW - SECOND)])
    latency.settle(outcome(39, 40))
    clock.now += SECOND
    latency.settle(outcome(99, 60))
    assert sorted_into(latency.read()) == {1.0: 40, 2.5: 60}


def test_what_was_not_acked_counts_when_it_is() -> None:
    """The entries behind a failure are counted with the next slice."""
    latency = route_latency(Append(9, 10, NOW - SECOND))
    latency.settle(outcome(3, 4))
    assert sum(latency.read().counts) == 4
    latency.begin([Append(9, 6, NOW - SECOND)])
    latency.settle(outcome(9, 6))
    assert sum(latency.read().counts) == 10


def test_what_the_filter_left_out_is_spread_over_the_appends() -> None:
    """Delivered entries are counted in proportion to each append's share."""
    latency = route_latency(Append(5, 6, NOW - 20_000), Append(8, 3, NOW - 2 * SECOND))
    latency.settle(outcome(8, 3, 6))
    assert sorted_into(latency.read()) == {0.025: 2, 2.5: 1}
    latency = route_latency(Append(9, 10, NOW))
    latency.settle(outcome(9, 0, 10))
    assert sum(latency.read().counts) == 0


def test_what_shards_delivered_ahead_counts_when_it_is_settled() -> None:
    """Entries that shards delivered ahead are counted with the outcome that settles them."""
    latency = route_latency(Append(9, 10, NOW - SECOND))
    latency.settle(outcome(3, 7))
    assert sum(latency.read().counts) == 4
    latency.settle(outcome(9, 3))
    assert sum(latency.read().counts) == 10


def test_a_slice_of_nothing_new_is_not_counted() -> None:
    """A replay's slice has no appends to count."""
    latency = route_latency()
    latency.settle(outcome(9, 10))
    assert sum(latency.read().counts) == 0


def test_a_log_time_that_is_ahead_counts_as_no_time() -> None:
    """An append whose log time is in the future counts as no time."""
    latency = route_latency(Append(0, 1, NOW + HOUR))
    latency.settle(outcome(0, 1))
    assert (sorted_into(latency.read()), latency.read().total) == ({0.005: 1}, 0.0)


def entries(engine: Engine) -> tuple[int, int]:
    """Return the numbers of entries that the one reader and the one route have counted."""
    status = engine.status()
    (reader,), (route,) = status.readers, status.routes
    return sum(reader.latency.counts), sum(route.latency.counts)


def filled(folder: Path, rows: int, **options: Any) -> None:
    """Append *rows* entries to a new log, each alone, with the log time of an hour ago."""
    with CommitLog.open(folder / "log", clock=lambda: wall_clock() - HOUR, **options) as log:
        for row in range(rows):
            log.append(messages_to_batch([Message("a", b"%d" % row)]), "in")


def test_a_backlog_counts_with_its_age(tmp_path: Path) -> None:
    """Entries logged before this run count with their wait since then."""
    filled(tmp_path, 3)
    engine = run_to_end(make_pipeline(tmp_path, [], out={}))
    (route,) = engine.status().routes
    assert sorted_into(route.latency) == {float("inf"): 3}


def test_a_replay_and_a_parked_retry_are_not_counted(tmp_path: Path) -> None:
    """Only the first delivery of an entry is counted."""
    lines = ["a x", "a no", "a z"]
    sink = {"adaptor": "choosy_sink:MendedWriter"}
    pipeline = make_pipeline(tmp_path, lines, end=False, out={"on_error": "park", "writer": sink})
    with running(pipeline) as engine:
        until(lambda: engine.status().routes[0].watermark == 2)
        assert entries(engine) == (0, 2)
        (tmp_path / "out.mended").touch()
        found = engine.route("out")
        assert found is not None
        found[1].begin_replay(0, 2)
        until(lambda: engine.status().routes[0].delivered == 4)
        found[1].request_retries([1])
        until(lambda: engine.status().routes[0].delivered == 5)
        assert entries(engine) == (0, 2)


def test_what_a_dead_worker_had_delivered_is_counted_once(tmp_path: Path) -> None:
    """Entries delivered by a dead worker are counted once, when they are acked."""
    lines = [f"a {n}" for n in range(20)]
    engine = run_to_end(make_pipeline(tmp_path, lines, out={"writer": {"die_at": 10}}))
    assert entries(engine) == (0, 20)


def test_a_status_can_be_read_while_entries_are_counted() -> None:
    """A histogram read during counting is whole, and its counts never go down."""
    timings, over = Timings(LATENCY_BOUNDS), threading.Event()
    column = batch(*[NOW - SECOND] * 100)

    def count() -> None:
        while not over.is_set():
            add_source_latency(timings, column, NOW)

    counting = threading.Thread(target=count)
    counting.start()
    seen = [sum(timings.read().counts) for _ in range(1000)]
    over.set()
    counting.join()
    assert seen == sorted(seen)
