"""Several Kafka readers in one group, each with its own log: partitions move, none is lost."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from background import Background
from engine_tools import Events, running, until
from kafka_reading import Bench, contents, data_of
from log_tools import Disk
from transporter_adaptors.kafka.reader import KafkaReader

from transporter.engine.reading.feed import Feed
from transporter.errors import SourceUnavailable
from transporter.log.commit_log import CommitLog
from transporter.pipeline.config import ReaderConfig, load
from transporter.testing.contracts import messages_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from services.kafka import Broker

    from transporter.message import Message
    from transporter.pipeline.config import Pipeline

pytestmark = pytest.mark.kafka


@pytest.fixture
def bench(kafka_broker: Broker) -> Iterator[Bench]:
    """Create topics, producers and readers of this test's group, and close all at the end."""
    kafka_broker.start()
    with Bench(kafka_broker) as bench:
        yield bench


_KILLED = """
import time
from transporter_adaptors.kafka.reader import KafkaReader
from transporter.testing.contracts import first_batch
from transporter.testing.doubles import FixedResume

reader = KafkaReader(KafkaReader.Config(
    bootstrap_servers="{servers}", group="{group}", topics=("{topic}",), batch_rows=10,
    commit_interval=0.0, client={{"session.timeout.ms": 6000}},
))
reader.open(FixedResume(log_id="a"))
reader.commit(first_batch(reader).position)
first_batch(reader)
print("polled twice", flush=True)
while True:
    time.sleep(1)
"""


class Engine(Background):
    """A thread that polls a reader, as a feed does, with the messages as its log."""

    def __init__(self, reader: KafkaReader, tally: Tally) -> None:
        super().__init__("engine")
        self.log: list[Message] = []
        self.problem: BaseException | None = None
        self._reader, self._tally = reader, tally

    def stop(self) -> None:
        """Stop polling, and leave the group."""
        super().stop()
        self._reader.close()
        assert self.problem is None

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                batch = self._reader.poll(0.2)
                self.log += messages_of(batch.messages)
                if batch.position is not None:
                    self._reader.commit(batch.position)
                self._tally.changed()
        except BaseException as error:  # noqa: BLE001 - the test asks
            self.problem = error


class Tally:
    """A condition that wakes threads waiting for a change of a log."""

    def __init__(self) -> None:
        self._condition = threading.Condition()

    def changed(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def until(self, holds: Callable[[], object], seconds: float = 60) -> None:
        """Wait until *holds* is true."""
        with self._condition:
            assert self._condition.wait_for(holds, seconds), "it did not happen"


def test_partitions_move_between_engines_without_loss_or_repeats(bench: Bench) -> None:
    """While engines join and leave the group, each record is in one log, once."""
    topic, tally = bench.topic(partitions=4), Tally()
    produced, stop = [0], threading.Event()

    def produce() -> None:
        while not stop.is_set():
            bench.produce_numbers(topic, 100, first=produced[0])
            produced[0] += 100

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        with Engine(bench.reader(topic, log_id="a"), tally) as first:
            tally.until(lambda: first.log)
            with Engine(bench.reader(topic, log_id="b"), tally) as second:
                tally.until(lambda: second.log)
                with Engine(bench.reader(topic, log_id="c"), tally) as third:
                    tally.until(lambda: third.log)
                count = len(first.log)
                tally.until(lambda: len(first.log) > count)
            stop.set()
            producer.join()
            logs = (first.log, second.log, third.log)
            tally.until(lambda: sum(map(len, logs)) >= produced[0])
    finally:
        stop.set()
        producer.join()

    found = sorted(data_of([message for log in logs for message in log]), key=int)
    assert found == [b"%d" % number for number in range(produced[0])]


def test_a_killed_engine_repeats_at_most_what_it_had_not_committed(bench: Bench) -> None:
    """The successor of a killed engine begins at its last commit."""
    topic = bench.topic()
    bench.produce_numbers(topic, 30)
    script = _KILLED.format(servers=bench.servers, group=bench.group, topic=topic)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        assert engine.stdout.readline() == b"polled twice\n"
        bench.until(lambda: bench.committed(topic).offset == 10)
        engine.kill()

    found = bench.messages(bench.reader(topic, log_id="b"), 20)

    assert data_of(found) == [b"%d" % number for number in range(10, 30)]


def test_a_reader_that_is_not_polled_keeps_its_seat_and_answers_rebalances(bench: Bench) -> None:
    """While the log is full another engine still gets its share, and no member is expelled."""
    topic = bench.topic(partitions=2)
    bench.produce_numbers(topic, 40)
    impatient = {
        "heartbeat.interval.ms": 300,
        "max.poll.interval.ms": 6000,
        "session.timeout.ms": 6000,
    }
    full = bench.reader(topic, log_id="a", batch_rows=10, client=impatient)
    kept = bench.batch(full)
    began = time.monotonic()

    other = bench.reader(topic, log_id="b", client=impatient)
    theirs = bench.gathered(other, lambda found: len(found) >= 20)
    assert time.monotonic() - began < 5.5, "the rebalance waited for the reader to be thrown out"
    theirs += bench.gathered(other, lambda _: time.monotonic() - began > 10)
    ours = data_of(messages_of(kept.messages))
    full.commit(kept.position or "")
    ours += bench.gathered(full, lambda found: len(set(ours + found + theirs)) == 40)

    # Records polled before the rebalance may be in both logs, as they were not durable then.
    assert len(theirs) == 20
    assert len(set(ours)) == len(ours)
    assert len(set(ours) & set(theirs)) <= 10
    other.close()
    bench.produce_numbers(topic, 20, first=100)
    # A partition that was revoked while paused is read again when it comes back.
    back = bench.gathered(full, lambda found: len(found) >= 20)
    assert sorted(back) == [b"%d" % number for number in range(100, 120)]


def test_more_engines_than_partitions_wait_their_turn(bench: Bench) -> None:
    """An engine without a partition is idle, and takes over when another one leaves."""
    topic, tally = bench.topic(), Tally()
    bench.produce_numbers(topic, 10)
    with Engine(bench.reader(topic, log_id="a"), tally) as first:
        tally.until(lambda: len(first.log) == 10)
        with Engine(bench.reader(topic, log_id="b"), tally) as second:
            first.stop()
            bench.produce_numbers(topic, 10, first=10)
            tally.until(lambda: len(second.log) == 10)

    assert contents([first.log, second.log]) == [b"%d" % number for number in range(20)]


def test_an_engine_carries_a_topic_into_a_file_over_restarts(bench: Bench, tmp_path: Path) -> None:
    """Each record is delivered once, and the group's metadata names the log that has it."""
    topic = bench.topic(partitions=2)
    pipeline, lines, events = _pipeline(bench, topic, tmp_path), tmp_path / "out.jsonl", Events()

    for run in (1, 2):
        bench.produce_numbers(topic, 200, first=200 * (run - 1))
        with running(pipeline, events=events):
            until(lambda total=200 * run: len(_lines(lines)) >= total)

    assert sorted(map(int, _lines(lines))) == list(range(400))
    marks = [bench.committed(topic, partition) for partition in range(2)]
    assert [mark.offset for mark in marks] == [200, 200]
    log_id = events.named("engine-started")[0]["log_id"]
    assert json.loads(marks[0].metadata)["transporter"].startswith(f"{log_id}/")


def test_a_feed_whose_disk_is_full_stays_in_the_group(bench: Bench, tmp_path: Path) -> None:
    """Beyond a member's permitted silence nothing is lost, repeated, or read by another."""
    topic, disk, events = bench.topic(), Disk(), Events()
    bench.produce_numbers(topic, 20)
    patience = {"max.poll.interval.ms": 6000, "session.timeout.ms": 6000}
    settings = KafkaReader.Config(
        bootstrap_servers=bench.servers,
        group=bench.group,
        topics=(topic,),
        batch_rows=5,
        client=patience,
    )
    config = ReaderConfig(name="in", adaptor="kafka", settings={}, cls=KafkaReader, config=settings)
    with CommitLog.open(tmp_path, files=disk) as log:
        disk.failing["pwrite"] = OSError(errno.ENOSPC, "No space left on device")
        feed = Feed(config, log, events, lambda _: None)
        feed.start()
        try:
            events.await_count("log-full")
            other = bench.reader(topic, log_id="b", client=patience)
            began = time.monotonic()
            theirs = bench.gathered(other, lambda _: time.monotonic() - began > 8)
            disk.failing.clear()
            bench.until(lambda: log.durable == 19)
        finally:
            feed.stop()
            feed.finish()

    assert theirs == []
    assert bench.committed(topic).offset == 20
    assert not events.named("reader-unavailable")


def _pipeline(bench: Bench, topic: str, folder: Path) -> Pipeline:
    """Return a pipeline of the kafka reader and the file writer."""
    writer = {"adaptor": "file", "path": "out.jsonl", "format": "data"}
    document = {
        "readers": [bench.reads(topic)],
        "routes": [{"name": "out", "writer": writer}],
        "log": {"dir": "log"},
    }
    path = folder / "pipeline.yaml"
    path.write_text(json.dumps(document))
    return load(path, {})


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_a_broker_that_is_gone_is_an_outage_and_the_next_reader_goes_on(
    bench: Bench, kafka_broker: Broker
) -> None:
    """The reader reports the outage, closes soon, and its successor leaves no gap."""
    topic = bench.topic(partitions=2)
    bench.produce_numbers(topic, 100)
    reader = bench.reader(topic)
    position = bench.positions(reader, 100)
    kafka_broker.kill()
    try:
        with pytest.raises(SourceUnavailable):
            bench.until(lambda: reader.poll(0.2) is None)
        began = time.monotonic()
        reader.close()
        assert time.monotonic() - began < 20
    finally:
        kafka_broker.start()
    bench.produce_numbers(topic, 100, first=100)

    found = data_of(bench.messages(bench.reader(topic, position=position), 100))

    assert sorted(found, key=int) == [b"%d" % number for number in range(100, 200)]
