"""From an application's commit to a Kafka consumer, row by row."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.figures import OURS, Aim, Comparison, Section, percentile
from benchmarks.messages import documents
from benchmarks.services import import_test_tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.services import Outbox
    from benchmarks.setting import Setting

RATE: Final = 200
_ROUTES: Final = (1, 8)
_SHARES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_AIMS: Final = {(1, "p50"): 1.8, (1, "p99"): 5.0, (8, "p50"): 5.0, (8, "p99"): 15.0}
_PATIENCE: Final = 30.0
SEQUENCE: Final = "sequence"
_PIPELINE: Final = """\
name: latency
log: {{dir: log}}
readers:
  - {{name: outbox, adaptor: postgres-outbox, dsn: "${{OUTBOX_DSN}}"}}
routes:
"""
_ROUTE: Final = """\
  - name: route-{number}
    writer: {{adaptor: kafka, bootstrap_servers: "{servers}", topic: "{topic}"}}
"""

METHOD: Final = f"""\
{RATE} commits a second of one outbox row each. The clock runs from the return of the application's
commit to the moment when a consumer in the same process has the message. Between them are the
trigger's notification, mark, log (synced), slice, worker in Spark, producer, broker, consumer. With
eight routes each row goes to eight topics, and each arrival counts.

The floor is the same application producing to the same number of topics itself, one `flush` a row
(idempotent, acks=all), from before the first `produce` to the same consumer. Each turn takes the
percentiles of two seconds."""
LIMITS: Final = """\
The path of one route (2026-11-28, p50): the mark takes 0.6 ms, most of it on the server; to make
and to sync the frame 0.45; three hand-overs between threads and processes 0.4; from `produce` to
its confirmation 0.8, where client and broker alone need 0.5. With eight routes a row costs 9 ms
of CPU (workers 3.1, engine 2.5, broker 1.9, database 0.7, this program 0.5) of the 10 that two
cores have until the next one comes. So everything waits for a core. Several routes' workers in
one process would save most: eight processes find their caches cold at each row."""


def measure(setting: Setting) -> Section:
    """Measure with one route and with eight."""
    found = [comparison for routes in _ROUTES for comparison in _measure_routes(setting, routes)]
    return Section("latency", METHOD, tuple(found), limits=LIMITS)


def _measure_routes(setting: Setting, routes: int) -> list[Comparison]:
    broker = setting.services.broker
    ours = [broker.create_topic(f"latency-{routes}-{number}") for number in range(routes)]
    floor = [broker.create_topic(f"direct-{routes}-{number}") for number in range(routes)]
    count = setting.scale(2 * RATE, RATE // 2)
    with (
        run_outbox_engine(setting, ours) as outbox,
        Arrivals(broker.bootstrap_servers, ours) as arrived,
        Arrivals(broker.bootstrap_servers, floor) as direct,
    ):
        commit, produce = make_committer(outbox), make_producer(broker.bootstrap_servers, floor)
        sides = {"ours": (commit, arrived), "floor": (produce, direct)}
        found = setting.interleave(
            {
                name: partial(measure_travel, send, seen, count)
                for name, (send, seen) in sides.items()
            }
        )
    subject = "1 route" if routes == 1 else f"{routes} routes"
    return [
        Comparison(
            f"{subject}, {label}",
            f"produce to consume, {label}",
            "ms",
            tuple(percentile(times, share) for times in found["ours"]),
            tuple(percentile(times, share) for times in found["floor"]),
            _aim(routes, label),
        )
        for label, share in _SHARES.items()
    ]


def _aim(routes: int, label: str) -> Aim | None:
    limit = _AIMS.get((routes, label))
    return None if limit is None else Aim(limit, at_least=False, figure=OURS)


@contextmanager
def run_outbox_engine(setting: Setting, topics: Sequence[str]) -> Iterator[Outbox]:
    """Run the engine with a route for each topic, and yield the outbox that it reads.

    The first of the topics names its database, as one run has several such engines.
    """
    outbox = setting.services.postgres.outbox(topics[0])
    pipeline = setting.make_folder(topics[0]) / "pipeline.yaml"
    servers = setting.services.broker.bootstrap_servers
    routes = (
        _ROUTE.format(number=number, servers=servers, topic=topic)
        for number, topic in enumerate(topics)
    )
    pipeline.write_text(_PIPELINE.format() + "".join(routes))
    setting.report(f"starting an engine ({len(topics)} routes)")
    with import_test_tool("acceptance_tools").running(pipeline, OUTBOX_DSN=outbox.dsn) as engine:
        for number in range(len(topics)):
            engine.await_event("worker-connected", route=f"route-{number}")
        yield outbox
        engine.stop()
    outbox.connection.close()


class Arrivals:
    """The arrival of each message in each topic, by the number of its row."""

    def __init__(
        self,
        servers: str,
        topics: Sequence[str],
        number_of: Callable[[Any], int] = lambda message: int(dict(message.headers())[SEQUENCE]),
    ) -> None:
        """Read *topics*, which are new. *number_of* returns the number in a message."""
        self._number_of = number_of
        self._topics = len(topics)
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": f"latency-{topics[0]}",
                "enable.auto.commit": False,
                "fetch.queue.backoff.ms": 10,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0) for topic in topics])
        self._seen: list[tuple[int, float]] = []
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._consume, name="consumer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._thread.join()
        self._consumer.close()

    def _consume(self) -> None:
        while not self._closing:
            message = self._consumer.poll(0.2)
            if message is None or message.error():
                continue
            now = time.perf_counter()
            sequence = self._number_of(message)
            with self._changed:
                self._seen.append((sequence, now))
                self._changed.notify_all()

    def await_rows(self, rows: int) -> list[tuple[int, float]]:
        """Wait until each of *rows* came out of each topic, and return all arrivals."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._seen) >= rows * self._topics, _PATIENCE)
            found, self._seen = self._seen, []
        if len(found) != rows * self._topics:
            raise RuntimeError(f"{len(found)} messages of {rows} rows for {self._topics} topics")
        return found


def pace_rows(rows: int) -> Iterator[tuple[int, str, str]]:
    """Yield the number, key and document of each row, at the rate of the benchmark."""
    began = time.perf_counter()
    for number, (key, data) in enumerate(documents(rows)):
        time.sleep(max(0.0, began + number / RATE - time.perf_counter()))
        yield number, key, data.decode()


def measure_travel(
    send: Callable[[int, str, str], float], arrived: Arrivals, rows: int
) -> list[float]:
    """Send *rows* rows at a steady rate and return the milliseconds of every arrival."""
    sent = [send(*row) for row in pace_rows(rows)]
    return [(came - sent[number]) * 1000 for number, came in arrived.await_rows(rows)]


def make_committer(outbox: Outbox) -> Callable[[int, str, str], float]:
    """Return a function that commits one row and returns the time after the commit."""

    def send(number: int, key: str, data: str) -> float:
        outbox.insert(number, key, data)
        return time.perf_counter()

    return send


def make_producer(servers: str, topics: Sequence[str]) -> Callable[[int, str, str], float]:
    """Return a function that produces one row to each topic and returns the time before."""
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 5,
            "log_level": 0,
        }
    )

    def send(number: int, key: str, data: str) -> float:
        began = time.perf_counter()
        headers: list[tuple[str, Any]] = [("trace", "t"), (SEQUENCE, str(number))]
        for topic in topics:
            producer.produce(topic, data, key, headers=headers)
        producer.flush()
        return began

    return send
