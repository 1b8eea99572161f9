"""The Kafka reader against a real broker: its records, its start positions, its commits."""

from __future__ import annotations

import json
import time
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from engine_tools import offsets, running, until
from kafka_reading import Bench, contents, data_of
from kafka_tools import DAMAGES
from transporter_adaptors.kafka.reader import KafkaReader

from transporter.errors import EnvironmentFault, SourceError, SourceUnavailable
from transporter.log.reader import LogReader
from transporter.message import ERROR_HEADER, Entries
from transporter.pipeline.config import load
from transporter.testing.contracts import messages_of
from transporter.testing.doubles import FixedResume

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from services.kafka import Broker

pytestmark = pytest.mark.kafka


class Undelivered(FixedResume):
    """What a reader is given whose logged entries no route has delivered yet."""

    @property
    def committable(self) -> str | None:
        """Nothing: all is still to be delivered."""
        return None


@pytest.fixture
def bench(kafka_broker: Broker) -> Iterator[Bench]:
    """Create topics, producers and readers of this test's group, and close all at the end."""
    kafka_broker.start()
    with Bench(kafka_broker) as bench:
        yield bench


def restart(broker: Broker) -> None:
    """Stop the broker as an operator would, and start it again."""
    broker.stop()
    broker.start()


def test_every_part_of_a_record_arrives_exactly(bench: Bench) -> None:
    """Key, value, headers in order and with repeats, time and origin are the record's."""
    topic = bench.topic(partitions=2)
    headers = [("a", b"1"), ("a", None), ("é", b"\x00\xff"), ("a", b"")]
    bench.produce(topic, b'{"n": 1.10}', key=b"k", headers=headers, timestamp=1_234_567)
    bench.produce(topic, b"", key=b"", partition=1)
    bench.produce(topic, None, key=b"gone")
    bench.produce(topic, b"\x00\xff", key=None)
    reader = bench.reader(topic, namespace="shop.{topic}")

    found = {message.source_id: message for message in bench.messages(reader, 4)}

    origin = f"{topic}@{bench.topic_id(topic)}"
    first, gone, raw = (found[f"{origin}/0/{offset}"] for offset in range(3))
    assert (first.data, first.key, first.op) == (b'{"n": 1.10}', b"k", "insert")
    assert first.headers == tuple(headers)
    assert first.timestamp == 1_234_567_000
    assert first.namespace == f"shop.{topic}"
    assert first.content_type == "application/json"
    assert (gone.data, gone.key, gone.op) == (None, b"gone", "delete")
    assert (raw.data, raw.key, raw.headers) == (b"\x00\xff", None, ())
    empty = found[f"{origin}/1/0"]
    assert (empty.data, empty.key, empty.op) == (b"", b"", "insert")


def test_a_header_name_that_is_no_text_is_told_in_a_header(bench: Bench) -> None:
    """The record arrives marked, ready to be parked, and its neighbours arrive unchanged."""
    topic = bench.topic()
    bench.produce(topic, b"1", headers=[("a", b"1")])
    bench.produce_badly_named(topic, b"\xff\xfe")
    bench.produce(topic, b"3")

    first, bad, last = bench.messages(bench.reader(topic), 3)

    assert (first.headers, last.headers) == ((("a", b"1"),), ())
    assert bad.data == b"bad"
    assert [name for name, _ in bad.headers] == [ERROR_HEADER]


def test_a_content_type_can_be_given_or_left_open(bench: Bench) -> None:
    """The setting is the content type of every message, and null means unknown."""
    topic = bench.topic()
    bench.produce(topic, b"x")

    (avro,) = bench.messages(bench.reader(topic, content_type="avro/binary"), 1)
    (unknown,) = bench.messages(bench.reader(topic, group="other", content_type=None), 1)

    assert (avro.content_type, unknown.content_type) == ("avro/binary", None)


def test_a_pattern_finds_topics_and_later_ones_and_no_internal_ones(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matching topics are read, and new ones soon after, even when none existed meanwhile."""
    monkeypatch.setattr("transporter_adaptors.kafka.reader._LOOK", 0.2)
    mark = uuid.uuid4().hex[:8]
    first = bench.topic(f"x-{mark}-a")
    bench.produce(bench.topic(f"{mark}-y"), b"no")
    bench.produce(first, b"1")
    reader = bench.reader(pattern=rf"^x-{mark}-|__consumer")

    assert data_of(bench.messages(reader, 1)) == [b"1"]
    bench.produce(bench.topic(f"x-{mark}-b"), b"2")
    assert data_of(bench.messages(reader, 1)) == [b"2"]
    bench.delete(f"x-{mark}-a")
    bench.delete(f"x-{mark}-b")
    bench.until(lambda: not reader.poll(0.1).messages and not reader._topics)
    bench.produce(bench.topic(f"x-{mark}-c"), b"3")
    assert data_of(bench.messages(reader, 1)) == [b"3"]


def test_the_group_hears_only_of_what_is_durable(bench: Bench) -> None:
    """Polled records that were not committed are not committed to the group, even at close."""
    topic = bench.topic()
    bench.produce_numbers(topic, 10)
    reader = bench.reader(topic, batch_rows=5)

    first = bench.batch(reader)
    bench.batch(reader)
    assert first.position is not None
    reader.commit(first.position)
    reader.close()

    assert bench.committed(topic).offset == 5


def test_a_group_that_waits_for_delivery_hears_of_nothing_else_after_a_restart(
    bench: Bench, tmp_path: Path
) -> None:
    """Otherwise the partition's next owner would skip records that are still undelivered here."""
    topic, file, down = bench.topic(), tmp_path / "pipeline.yaml", tmp_path / "out.down"
    reader = bench.reads(topic, release="delivered")
    writer = {"adaptor": "engine_tools:LinesWriter", "path": "out.jsonl"}
    route = {"name": "out", "writer": writer, "retry": {"backoff": "1ms..5ms"}}
    document = {"log": {"dir": "log"}, "shutdown_timeout": "100ms"}
    file.write_text(json.dumps(document | {"readers": [reader], "routes": [route]}))
    down.write_text("write")

    for first in (0, 10):
        bench.produce_numbers(topic, 10, first=first)
        with running(load(file, {})) as engine:
            until(lambda engine=engine, first=first: engine.status().last == first + 9)
        assert bench.committed(topic).offset < 0

    down.unlink()
    with running(load(file, {})):
        until(lambda: len(offsets(tmp_path / "out.jsonl")) == 20)
        # Also without a new record, and not before the reader has joined the group.
        until(lambda: bench.committed(topic).offset == 20)


def test_a_group_that_waits_for_delivery_hears_of_it_after_an_interrupted_reading(
    bench: Bench, tmp_path: Path
) -> None:
    """Entries that were logged by an earlier membership are committed as they are delivered."""
    topic = bench.topic()
    bench.produce_numbers(topic, 10)
    reader = bench.reader(topic, batch_rows=5)
    first, second = bench.batch(reader), bench.batch(reader)
    assert first.position is not None
    assert second.position is not None

    reader.open(Undelivered(second.position))
    reader.commit(first.position)
    bench.until(lambda: not reader.poll(0.1).messages and bench.committed(topic).offset == 5)
    reader.commit(second.position)
    reader.close()

    assert bench.committed(topic).offset == 10


def test_a_record_that_no_append_takes_is_parked_and_the_others_arrive(
    bench: Bench, tmp_path: Path
) -> None:
    """A record of more than 8 MiB, which brokers may allow, stops neither reader nor route."""
    topic, file = bench.topic(max_message_bytes=str(20 * 1024**2)), tmp_path / "pipeline.yaml"
    bench.produce(topic, b"1", key=b"a")
    bench.produce(topic, b"x" * 9 * 1024**2, key=b"b")
    bench.produce(topic, b"2", key=b"c")
    writer = {"adaptor": "engine_tools:LinesWriter", "path": "out.jsonl"}
    route = {"name": "out", "writer": writer, "on_error": "park"}
    document = {"log": {"dir": "log"}, "readers": [bench.reads(topic)], "routes": [route]}
    file.write_text(json.dumps(document))

    with running(load(file, {})) as engine:
        until(lambda: len(offsets(tmp_path / "out.jsonl")) == 2)
        until(lambda: engine.status().routes[0].parked == 1)

    assert offsets(tmp_path / "out.jsonl") == [0, 2]
    with LogReader(tmp_path / "log") as reader:
        (large,) = [
            entry.message
            for part in reader.read(1, 1)
            for entry in Entries(part)
            if entry.offset == 1
        ]
    ((name, reason),) = large.headers
    assert (name, large.key) == (ERROR_HEADER, b"b")
    assert f"{topic}@{bench.topic_id(topic)}/0/1".encode() in (reason or b"")
    assert json.loads(large.data or b"")["bytes"]["data"] == 9 * 1024**2


def test_the_committed_metadata_names_the_log(bench: Bench) -> None:
    """Beside its offset the group keeps the ids of log and topic."""
    topic = bench.topic()
    bench.produce_numbers(topic, 3)
    reader = bench.reader(topic, log_id="log-of-ada", commit_interval=0.0)

    bench.messages(reader, 3)
    bench.until(lambda: reader.poll(0.1) and bench.committed(topic).offset == 3)

    mark = json.loads(bench.committed(topic).metadata)
    assert mark["transporter"].startswith("log-of-ada/")
    assert mark["topic"] == bench.topic_id(topic)


def test_the_log_goes_before_the_group_that_this_log_has_committed(bench: Bench) -> None:
    """After a crash between append and commit nothing is read again."""
    topic = bench.topic()
    bench.produce_numbers(topic, 30)
    reader = bench.reader(topic, batch_rows=10)
    first, second = bench.batch(reader), bench.batch(reader)
    reader.commit(first.position or "")
    reader.close()
    assert bench.committed(topic).offset == 10

    # The second batch is durable, too, and its commit was never sent.
    rest = bench.reader(topic, position=second.position)

    assert data_of(bench.messages(rest, 10)) == [b"%d" % number for number in range(20, 30)]


def test_without_a_commit_the_log_alone_decides(bench: Bench) -> None:
    """A position of the log counts in a group without a commit."""
    topic = bench.topic()
    bench.produce_numbers(topic, 20)
    reader = bench.reader(topic, batch_rows=10)
    first = bench.batch(reader)
    reader.close()

    rest = bench.reader(topic, position=first.position)

    assert data_of(bench.messages(rest, 10)) == [b"%d" % number for number in range(10, 20)]


@pytest.mark.parametrize("to", [3, 17])
def test_an_operators_reset_of_the_group_wins(bench: Bench, to: int) -> None:
    """Offsets set for the group, back or ahead, take precedence over the log's position."""
    topic = bench.topic()
    bench.produce_numbers(topic, 20)
    position = bench.read_all(bench.reader(topic, batch_rows=10), 10)

    bench.reset(topic, to)
    again = bench.reader(topic, position=position)

    assert data_of(bench.messages(again, 20 - to)) == [b"%d" % n for n in range(to, 20)]


def test_another_engine_goes_on_behind_what_the_group_knows(bench: Bench) -> None:
    """An engine with its own log begins where the first one's commits end, and back again."""
    topic = bench.topic()
    bench.produce_numbers(topic, 10)
    ours = bench.read_all(bench.reader(topic, log_id="ours"), 10)
    bench.produce_numbers(topic, 10, first=10)
    theirs = bench.reader(topic, log_id="theirs")
    bench.read_all(theirs, 10)
    bench.produce_numbers(topic, 5, first=20)

    back = bench.reader(topic, position=ours, log_id="ours")

    assert data_of(bench.messages(back, 5)) == [b"%d" % number for number in range(20, 25)]


def test_a_takeover_without_a_record_is_remembered(bench: Bench) -> None:
    """An engine that took over a partition without a record does not return to its old position."""
    topic = bench.topic()
    bench.produce_numbers(topic, 10)
    ours = bench.read_all(bench.reader(topic, log_id="ours"), 10)
    bench.produce_numbers(topic, 10, first=10)
    bench.read_all(bench.reader(topic, log_id="theirs"), 10)
    idle = bench.reader(topic, position=ours, log_id="ours", commit_interval=0.0)
    owner = json.loads(ours)["owner"]
    bench.until(lambda: not idle.poll(0.1).messages and owner in bench.committed(topic).metadata)
    idle.close()
    bench.produce_numbers(topic, 1, first=20)

    back = bench.reader(topic, position=ours, log_id="ours")

    assert data_of(bench.messages(back, 1)) == [b"20"]


@pytest.mark.exhaustive
def test_a_takeover_without_a_record_outlives_elections_of_partition_leaders(
    bench: Bench, kafka_broker: Broker
) -> None:
    """The commit behind another engine's records does not claim the epoch of our last record.

    The client compares the two when the partition's leader changes while nothing is read. A
    commit of an earlier version, which did claim it, is not believed.
    """
    topics = bench.topic(), bench.topic()
    for topic in topics:
        bench.produce_numbers(topic, 10)
    ours = bench.read_all(bench.reader(*topics, log_id="ours"), 20)
    restart(kafka_broker)  # Each start of the broker is another epoch.
    for topic in topics:
        bench.produce_numbers(topic, 10, first=10)
    bench.read_all(bench.reader(*topics, log_id="theirs"), 20)
    idle = bench.reader(*topics, position=ours, log_id="ours", commit_interval=0.0)
    owner = json.loads(ours)["owner"]
    for topic in topics:
        bench.until(
            lambda topic=topic: (
                not idle.poll(0.1).messages and owner in bench.committed(topic).metadata
            )
        )
    idle.close()
    bench.commit(topics[1], 20, epoch=0, metadata=bench.committed(topics[1]).metadata)

    # A membership that ends would begin again, without a comparison.
    back = bench.reader(*topics, position=ours, client={"session.timeout.ms": 120_000})
    bench.until(lambda: not back.poll(0.1).messages and back._group and back._group.is_at_end)
    restart(kafka_broker)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:  # The client notices the new epoch meanwhile.
        assert not back.poll(0.2).messages
    for topic in topics:
        bench.produce_numbers(topic, 1, first=20)

    assert data_of(bench.messages(back, 2)) == [b"20", b"20"]


def test_latest_begins_at_the_end_and_remembers_it(bench: Bench) -> None:
    """With ``start: latest`` old records are skipped, and records sent during a stop are read."""
    topic = bench.topic()
    bench.produce_numbers(topic, 5)
    first = bench.reader(topic, start="latest", commit_interval=0.0)
    bench.until(lambda: not first.poll(0.1).messages and bench.committed(topic).offset == 5)
    first.close()
    bench.produce_numbers(topic, 2, first=5)

    second = bench.reader(topic, start="latest")

    assert data_of(bench.messages(second, 2)) == [b"5", b"6"]


FRESH = {"topic.metadata.refresh.interval.ms": 300}


@pytest.mark.parametrize("reading", [True, False], ids=["while it reads", "while it is down"])
def test_partitions_added_later_are_read_from_their_beginning(
    bench: Bench, *, reading: bool
) -> None:
    """``start: latest`` covers partitions that existed at the start, as keys move to new ones."""
    topic = bench.topic()
    bench.produce_numbers(topic, 5)
    settings = {"start": "latest", "client": FRESH, "commit_interval": 0.0}
    reader = bench.reader(topic, **settings)
    bench.until(
        lambda: not reader.poll(0.1).messages and reader._group and reader._group.partitions
    )
    if not reading:
        reader.close()

    bench.add_partitions(topic, 3)
    bench.produce(topic, b"new", partition=2)
    if not reading:
        reader = bench.reader(topic, **settings)

    assert data_of(bench.messages(reader, 1)) == [b"new"]


@pytest.mark.parametrize("reading", [True, False], ids=["while it reads", "while it is down"])
def test_topics_that_a_pattern_finds_later_are_read_from_their_beginning(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, reading: bool
) -> None:
    """Topics that exist at the start are skipped, and later ones are read completely."""
    monkeypatch.setattr("transporter_adaptors.kafka.reader._LOOK", 0.2)
    mark = uuid.uuid4().hex[:8]
    bench.produce(bench.topic(f"{mark}-old"), b"old")
    settings = {"pattern": f"^{mark}-", "start": "latest"}
    reader = bench.reader(**settings)
    if not reading:
        reader.close()

    bench.produce(bench.topic(f"{mark}-new"), b"new")
    if not reading:
        reader = bench.reader(**settings)

    assert data_of(bench.messages(reader, 1)) == [b"new"]


@pytest.mark.exhaustive
def test_all_engines_of_a_group_begin_at_the_same_end(bench: Bench) -> None:
    """The second member does not take a partition for a new one and read its old records."""
    topic = bench.topic(partitions=4)
    bench.produce_numbers(topic, 8)
    settings = {"start": "latest", "commit_interval": 3600.0}
    first = bench.reader(topic, **settings)
    second = bench.reader(topic, log_id="log-2", **settings)
    found: list[bytes] = []

    def shared() -> bool:
        for reader in (first, second):
            found.extend(data_of(messages_of(reader.poll(0.1).messages)))
        return all(len(each._group.partitions) == 2 for each in (first, second) if each._group)

    bench.until(shared)
    bench.produce_numbers(topic, 4, first=8)
    bench.until(lambda: (shared(), len(found) >= 4)[1])

    assert sorted(found) == [b"10", b"11", b"8", b"9"]


@pytest.mark.exhaustive
def test_a_topic_that_is_named_later_begins_as_start_says(bench: Bench) -> None:
    """``start`` also applies while others are in the group, before the start can be committed."""
    one, two = bench.topic(), bench.topic()
    bench.produce(two, b"old")
    other = bench.reader(one, start="latest")
    bench.until(lambda: not other.poll(0.1).messages and other._group and other._group.partitions)

    reader = bench.reader(one, two, start="latest", log_id="log-2")

    def joined() -> bool:
        other.poll(0.1)
        group = reader._group
        return not reader.poll(0.1).messages and group is not None and (two, 0) in group.partitions

    bench.until(joined)
    bench.produce(two, b"new")
    assert data_of(bench.messages(reader, 1)) == [b"new"]


def test_the_end_is_told_when_it_is_not_waited_for(bench: Bench) -> None:
    """With ``follow: false`` a topic without records ends at once."""
    reader = bench.reader(bench.topic(partitions=3), follow=False)

    assert contents(bench.to_end(reader)) == []


def test_records_of_aborted_transactions_are_left_out(bench: Bench) -> None:
    """Only committed records arrive, unless the isolation is lowered."""
    topic = bench.topic()
    bench.transaction(topic, [b"1", b"2"], commit=False)
    bench.transaction(topic, [b"3"], commit=True)

    clean = contents(bench.to_end(bench.reader(topic, follow=False)))
    dirty = bench.reader(topic, group="all", follow=False, isolation="read_uncommitted")

    assert clean == [b"3"]
    assert contents(bench.to_end(dirty)) == [b"1", b"2", b"3"]


def test_ends_of_transactions_are_passed_and_told(bench: Bench) -> None:
    """A quiet transactional topic shows no lag, and its retention is not a loss after a restart."""
    topic = bench.topic()
    bench.transaction(topic, [b"1", b"2"], commit=True)
    reader = bench.reader(topic, commit_interval=0.0)
    position = bench.positions(reader, 2)
    bench.until(lambda: not reader.poll(0.1).messages and bench.committed(topic).offset == 3)
    reader.close()
    bench.delete_records(topic, 3)
    bench.produce_numbers(topic, 1)

    assert data_of(bench.messages(bench.reader(topic, position=position), 1)) == [b"0"]


def test_records_that_are_gone_stop_the_reader(bench: Bench) -> None:
    """By default the error names the partition, the wanted offset and the available ones."""
    topic = bench.topic()
    bench.produce_numbers(topic, 20)
    position = bench.read_all(bench.reader(topic, batch_rows=5), 5)
    bench.delete_records(topic, 12)
    reader = bench.reader(topic, position=position)

    with pytest.raises(SourceError) as failure:
        bench.batch(reader)

    assert not isinstance(failure.value, SourceUnavailable)
    text = f"partition 0 of topic {topic} is to be read from offset 5 on, but the broker has 12 to"
    assert text in str(failure.value)
    assert "on_out_of_range" in str(failure.value)


@pytest.mark.parametrize(("policy", "expected"), [("earliest", b"12"), ("latest", b"20")])
def test_records_that_are_gone_can_be_passed(
    bench: Bench, policy: str, expected: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """With another policy the reader continues at the beginning or the end, and logs it."""
    topic = bench.topic()
    bench.produce_numbers(topic, 20)
    position = bench.read_all(bench.reader(topic, batch_rows=5), 5)
    bench.delete_records(topic, 12)
    reader = bench.reader(topic, position=position, on_out_of_range=policy, commit_interval=0.0)
    if policy == "latest":
        bench.until(lambda: not reader.poll(0.1).messages and bench.committed(topic).offset == 20)
    bench.produce_numbers(topic, 1, first=20)

    assert data_of(bench.messages(reader, 1))[0] == expected
    assert "is to be read from offset 5 on" in caplog.text


@DAMAGES
def test_records_before_one_that_cannot_be_read_are_read(
    bench: Bench, kafka_broker: Broker, damage: bytes
) -> None:
    """They are handed out before the error, which names the place and comes again."""
    topic = bench.topic()
    bench.produce_numbers(topic, 3)
    bench.produce(topic, b"lost" * 100, client={"compression.type": "gzip"})
    bench.produce_numbers(topic, 3, first=4)
    kafka_broker.damage(topic, damage)
    position: str | None = None

    for wanted in ([b"0", b"1", b"2"], []):
        reader = bench.reader(topic, position=position)
        if wanted:
            assert data_of(bench.messages(reader, 3)) == wanted
        with pytest.raises(
            SourceError, match=f"partition 0 of topic {topic}, offset 3: "
        ) as failure:
            bench.batch(reader)
        assert not isinstance(failure.value, SourceUnavailable)
        assert "move the group past it" in str(failure.value)
        position = str(reader._position)
        reader.close()
    bench.reset(topic, 4)

    rest = bench.reader(topic, position=position)
    assert data_of(bench.messages(rest, 3)) == [b"4", b"5", b"6"]


def test_a_topic_created_anew_is_read_from_its_beginning(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The position in a deleted topic is not applied to a new topic of the same name."""
    topic = bench.topic()
    bench.produce_numbers(topic, 10)
    position = bench.read_all(bench.reader(topic, batch_rows=5), 5)
    old = bench.topic_id(topic)
    bench.recreate(topic)
    bench.produce_numbers(topic, 20, first=100)

    found = bench.messages(bench.reader(topic, position=position), 20)

    assert data_of(found) == [b"%d" % number for number in range(100, 120)]
    assert found[0].source_id == f"{topic}@{bench.topic_id(topic)}/0/0"
    assert bench.topic_id(topic) != old
    assert "not the one that was read before" in caplog.text


@pytest.mark.parametrize("refresh", [500, 30_000], ids=["noticed by the client", "by us"])
def test_a_topic_created_anew_while_it_is_read_is_read_from_its_beginning(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, refresh: int
) -> None:
    """Every record of the new topic arrives, including those below the old position."""
    monkeypatch.setattr("transporter_adaptors.kafka.reader._LOOK", 0.5)
    topic = bench.topic()
    bench.produce_numbers(topic, 10)
    client = {"topic.metadata.refresh.interval.ms": refresh}
    reader = bench.reader(topic, client=client)
    bench.messages(reader, 10)
    bench.recreate(topic)
    bench.produce_numbers(topic, 20, first=100)

    wanted = {b"%d" % number for number in range(100, 120)}
    # Until the change is noticed, records behind the old place may come first, and then again.
    assert wanted <= set(bench.gathered(reader, wanted.issubset))


def test_a_topic_that_was_never_there_is_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a grace period the open names the missing topics, and the engine retries."""
    monkeypatch.setattr("transporter_adaptors.kafka.reader._GRACE", 0.5)
    with pytest.raises(SourceUnavailable, match="these topics do not exist: nowhere"):
        bench.reader("nowhere")


@pytest.mark.exhaustive
def test_a_topic_that_is_deleted_makes_the_source_unavailable(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that was deleted after it was read is reported, and waited for."""
    monkeypatch.setattr("transporter_adaptors.kafka.reader._GRACE", 0.5)
    monkeypatch.setattr("transporter_adaptors.kafka.reader._LOOK", 0.2)
    topic = bench.topic()
    bench.produce_numbers(topic, 1)
    reader = bench.reader(topic)
    position = bench.positions(reader, 1)
    bench.delete(topic)

    with pytest.raises(SourceUnavailable, match="are gone"):
        bench.until(lambda: reader.poll(0.1) is None)
    with pytest.raises(SourceUnavailable, match="are gone"):
        bench.reader(topic, position=position)


def test_no_broker_is_an_outage(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open without an answer raises a retriable error and leaves nothing behind."""
    monkeypatch.setattr("transporter_adaptors.kafka.cluster.REQUEST_SECONDS", 1.0)
    config = KafkaReader.Config(bootstrap_servers="127.0.0.1:9", group="g", topics=("t",))
    reader = KafkaReader(config)

    with pytest.raises(SourceUnavailable, match=r"127\.0\.0\.1:9"):
        reader.open(FixedResume())
    reader.close()


def test_an_unknown_setting_is_a_fault_and_keeps_secrets(bench: Bench) -> None:
    """A setting unknown to the client is named, and no value of any setting is shown."""
    with pytest.raises(EnvironmentFault) as failure:
        bench.reader(bench.topic(), client={"sasl.pasword": "hunter2"})

    assert "sasl.pasword" in str(failure.value)
    assert "hunter" not in str(failure.value)


def test_an_idle_reader_gives_a_record_within_milliseconds(bench: Bench) -> None:
    """A record that arrives during a poll is returned without waiting for more or a time-out."""
    topic = bench.topic()
    reader = bench.reader(topic)
    bench.produce_numbers(topic, 1)
    bench.messages(reader, 1)
    producer = Producer({"bootstrap.servers": bench.servers, "linger.ms": 0})
    waits = []
    for _ in range(30):
        producer.produce(topic, b"x")
        producer.flush()
        began = time.monotonic()
        bench.batch(reader)
        waits.append(time.monotonic() - began)

    assert sorted(waits)[15] < 0.1


def test_a_batch_is_bounded_by_rows_and_by_bytes(bench: Bench) -> None:
    """No batch exceeds its rows, and none exceeds its bytes by much."""
    topic = bench.topic()
    bench.produce_numbers(topic, 5000, size=1000)
    rows = bench.to_end(bench.reader(topic, follow=False, batch_rows=700))
    size = bench.to_end(bench.reader(topic, group="bytes", follow=False, batch_bytes=1))

    assert max(len(batch) for batch in rows) == 700
    assert max(len(batch) for batch in size) <= 1001
    assert contents(rows) == contents(size)


def test_a_broker_that_does_not_answer_is_an_outage(
    bench: Bench, kafka_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen broker with open connections is noticed by the next look at the topics."""
    monkeypatch.setattr("transporter_adaptors.kafka.reader._LOOK", 0.5)
    monkeypatch.setattr("transporter_adaptors.kafka.cluster.REQUEST_SECONDS", 1.0)
    reader = bench.reader(bench.topic())
    kafka_broker.pause()
    try:
        with pytest.raises(SourceUnavailable):
            bench.until(lambda: reader.poll(0.2) is None)
    finally:
        kafka_broker.resume()


@pytest.mark.exhaustive
def test_a_reader_outlives_a_short_absence_of_the_broker(
    bench: Bench, kafka_broker: Broker
) -> None:
    """A clean restart of the broker interrupts nothing, and each record arrives once."""
    topic = bench.topic()
    bench.produce_numbers(topic, 50)
    reader = bench.reader(topic)
    found = bench.messages(reader, 50)
    kafka_broker.stop()
    kafka_broker.start()
    bench.produce_numbers(topic, 50, first=50)

    found += bench.messages(reader, 50)

    assert data_of(found) == [b"%d" % number for number in range(100)]


def test_an_assignment_that_fails_is_told_and_leaves_nothing_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the partitions' positions nothing is read, and the next reader starts."""
    topic = bench.topic()
    bench.produce_numbers(topic, 3)
    reader = bench.reader(topic)
    with monkeypatch.context() as patch:
        patch.setattr("transporter_adaptors.kafka.cluster.Cluster.ids", lambda *_: {})
        with pytest.raises(SourceUnavailable, match="have just disappeared"):
            bench.batch(reader)
    reader.close()

    assert len(bench.messages(bench.reader(topic), 3)) == 3


def test_a_lost_position_of_another_kind_is_named(bench: Bench) -> None:
    """A position that no kafka reader wrote stops the open, with the remedy."""
    with pytest.raises(SourceError, match="give the reader another name"):
        bench.reader(bench.topic(), position='{"batch": 3}')
