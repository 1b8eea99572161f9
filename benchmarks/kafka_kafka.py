"""From topic to topic: the engine against a loop of ``consume`` and ``produce``."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections import Counter
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks.figures import OURS, Aim, Comparison, Section, percentile
from benchmarks.latency import RATE, SEQUENCE, Arrivals, make_producer, measure_travel
from benchmarks.messages import documents
from benchmarks.relays import SHAPES
from benchmarks.services import Topic, import_test_tool
from benchmarks.setting import ROOT, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.setting import Setting

_AIM: Final = 1.2
_SHARES: Final = {"p50": 0.5, "p99": 0.99}
_LATE_MS: Final = {("plain", "p50"): 4.0, ("plain", "p99"): 15.0}
_PATIENCE: Final = 120.0
_QUIET: Final = 2.0
_PIPELINE: Final = """\
name: {target}
log: {{dir: log}}
readers:
  - {{name: source, adaptor: kafka, bootstrap_servers: "{servers}", topics: ["{source}"],
     group: "engine-{source}"}}
routes:
  - name: target
    writer: {{adaptor: kafka, bootstrap_servers: "{servers}", topic: "{target}",
      transactional: {transactional}}}
"""

METHOD: Final = f"""\
A real `transporter run`, with its defaults, reads a topic of one partition into its log (synced)
and writes it to another one. The loop is the program that one would write with confluent-kafka, in
its own process. It repeats these steps: `consume` at most 1000 waiting records, `produce` each with
key, value, headers and time, `flush`, commit the offsets synchronously. The producer's settings are
the same (idempotent, acks=all), and both read committed records only. After a crash both lose
nothing and may repeat uncommitted records.

"Transactional" is `transactional: true`, a transaction a slice with the route's progress in it. Its
rival's loop is begin, `produce`, `send_offsets_to_transaction`, commit. The loop keeps no log, so
its records can be replayed from the source only.

Backlog: both sides wait. The documents (about 200 bytes, 1000 keys, two headers) become visible
with the commit of one transaction. The clock runs from there until a reader of committed records
finds the last of them in the target.

Latency: {RATE} messages a second, one `flush` each. The clock runs from before `produce` into the
source to the moment when a consumer in the same process has the message from the target. Each turn
takes the percentiles of two seconds. Every message was in its target once."""
LIMITS: Final = """\
Each message becomes Arrow in the engine, is logged, synced, read again in a worker and becomes a
Python object once more. The loop passes on the objects that the client has made. Our three
processes share few cores with the broker."""


def measure(setting: Setting) -> Section:
    """Relay in turns, by the engine and by the loop, first plainly, then in transactions."""
    comparisons = [each for shape in SHAPES for each in _measure_shape(setting, shape)]
    return Section("kafka-kafka", METHOD, tuple(comparisons), limits=LIMITS)


def _measure_shape(setting: Setting, shape: str) -> list[Comparison]:
    given = list(documents(setting.scale(200_000, 20_000)))
    with ExitStack() as stack:
        ways = {
            kind: _Way(stack, setting.services.broker, f"{kind}-{shape}")
            for kind in ("engine", "loop")
        }
        stack.enter_context(_run_engine(setting, shape, ways["engine"]))
        stack.enter_context(_run_loop(setting, shape, ways["loop"]))
        late = _latencies(setting, ways)
        rates = setting.interleave({kind: partial(way.drain, given) for kind, way in ways.items()})
        for way in ways.values():
            way.verify()
    prefix = "" if shape == "plain" else f"{shape}, "
    rate = Comparison(
        f"{prefix}backlog",
        f"{prefix}consume and produce",
        "messages/s",
        rates["engine"],
        rates["loop"],
        Aim(_AIM, at_least=True),
    )
    return [rate, *(_compare(late, shape, prefix, label) for label in _SHARES)]


def _compare(
    late: dict[str, tuple[list[float], ...]], shape: str, prefix: str, label: str
) -> Comparison:
    limit, share = _LATE_MS.get((shape, label)), _SHARES[label]
    return Comparison(
        f"{prefix}topic to topic, {label}",
        f"{prefix}consume and produce, {label}",
        "ms",
        tuple(percentile(times, share) for times in late["engine"]),
        tuple(percentile(times, share) for times in late["loop"]),
        None if limit is None else Aim(limit, at_least=False, figure=OURS),
    )


def _latencies(setting: Setting, ways: dict[str, _Way]) -> dict[str, tuple[list[float], ...]]:
    """Send at a steady rate. The targets are new, or :class:`Arrivals` would see older messages."""
    count = setting.scale(2 * RATE, RATE // 2)
    with ExitStack() as stack:
        sides = {
            kind: partial(way.travel, stack.enter_context(way.arrivals()), count)
            for kind, way in ways.items()
        }
        return setting.interleave(sides)


@contextmanager
def _run_engine(setting: Setting, shape: str, way: _Way) -> Iterator[None]:
    """Run the engine between the topics of *way*."""
    pipeline = setting.make_folder(shape) / "pipeline.yaml"
    pipeline.write_text(
        _PIPELINE.format(
            servers=way.servers,
            source=way.source,
            target=way.target,
            transactional=str(SHAPES[shape]).lower(),
        )
    )
    setting.report(f"starting an engine ({shape})")
    with import_test_tool("acceptance_tools").running(pipeline) as engine:
        engine.await_event("worker-connected", route="target")
        yield
        engine.stop()


@contextmanager
def _run_loop(setting: Setting, shape: str, way: _Way) -> Iterator[None]:
    """Run the loop between the topics of *way*."""
    setting.report(f"starting a loop ({shape})")
    command = [sys.executable, "-m", "benchmarks.relays"]
    with subprocess.Popen(
        [*command, shape, way.servers, way.source, way.target],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            process.stdout.readline()
            yield
        finally:
            process.kill()


class _Way:
    """A source that is relayed into a target, both new, and the messages sent."""

    def __init__(self, stack: ExitStack, broker: Any, name: str) -> None:  # noqa: ANN401 - the tests' Broker
        self.servers: str = broker.bootstrap_servers
        self.source: str = broker.create_topic(f"source-{name}")
        self._topic = Topic(broker, f"target-{name}")
        stack.callback(self._topic.close)
        self.target = self._topic.name
        self._sent: Counter[int] = Counter()
        self._send = make_producer(self.servers, [self.source])
        self._producer = _transactions(self.servers)
        self._consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": f"end-{name}",
                "enable.auto.commit": False,
                "fetch.queue.backoff.ms": 10,
                "log_level": 0,
            }
        )
        stack.callback(self._consumer.close)

    def arrivals(self) -> Arrivals:
        """Return the consumer that times the messages of the target."""
        return Arrivals(self.servers, [self.target])

    def travel(self, arrived: Arrivals, rows: int) -> list[float]:
        """Send *rows* messages at a steady rate. Return the milliseconds each took."""
        self._sent.update(range(rows))
        return measure_travel(self._send, arrived, rows)

    def drain(self, given: Sequence[tuple[str, bytes]]) -> float:
        """Return the messages a second that come out of a backlog of the documents *given*."""
        rows, before = len(given), self._topic.end
        self._sent.update(range(rows))
        self._fill(given)
        began = time.perf_counter()
        what = f"{rows} more messages in {self.target}"
        # The end of a transaction takes an offset, too: of those messages a few may be missing.
        wait_until(lambda: self._topic.end >= before + rows, _PATIENCE, what)
        if rows - 1 not in self._read_from(before + rows - 1, _PATIENCE):
            raise TimeoutError(f"not within {_PATIENCE:g} s: {what}")
        return rows / (time.perf_counter() - began)

    def _fill(self, given: Sequence[tuple[str, bytes]]) -> None:
        """Make all of *given* visible at once."""
        self._producer.begin_transaction()
        for number, (key, data) in enumerate(given):
            headers: list[tuple[str, Any]] = [("trace", "t"), (SEQUENCE, str(number))]
            self._producer.produce(self.source, data, key, headers=headers)
        self._producer.commit_transaction(_PATIENCE)

    def verify(self) -> None:
        """Raise unless the target holds the sent messages, each once."""
        found = Counter(self._read_from(0, _QUIET))
        if found != self._sent:
            raise RuntimeError(
                f"{self.target} holds {found.total()} messages, not each of the "
                f"{self._sent.total()} once"
            )

    def _read_from(self, offset: int, quiet: float) -> Iterator[int]:
        """Yield the sequence of committed messages from *offset* on, until none comes any more."""
        self._consumer.assign([TopicPartition(self.target, 0, offset)])
        while records := self._consumer.consume(1, quiet):
            for record in records + self._consumer.consume(1000, 0):
                if record.error() is not None:
                    raise KafkaException(record.error())
                yield int(dict(record.headers())[SEQUENCE])


def _transactions(servers: str) -> Producer:
    """Return a producer that can keep a backlog invisible."""
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": uuid.uuid4().hex,
            "transaction.timeout.ms": 120_000,
            "queue.buffering.max.messages": 1_000_000,
            "linger.ms": 50,
        }
    )
    producer.init_transactions(_PATIENCE)
    return producer
