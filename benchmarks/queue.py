"""Message queues: receiving and acking each message by itself, and redelivering in time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks.figures import OURS, Aim, Comparison, Section, percentile
from benchmarks.messages import documents
from benchmarks.queue_workers import QUEUE, WARM
from benchmarks.setting import ROOT, wait_until
from transporter.queue import QueueProducer, QueueSettings, settings_of
from transporter.queue.topics import make_topics

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.setting import Setting

_AIMS: Final = {1: 51_000.0, 4: 94_000.0}
"""Messages per second of kmq, one and four consumers, on a machine like this."""
_LATE_MS: Final = 100.0
_PARTITIONS: Final = 4
_PATIENCE: Final = 120.0
_PACE: Final = 0.005
_SETTLING: Final = 2.0
"""Seconds behind a first message, which does not count: connections are made and paths found."""

METHOD: Final = """\
A backlog of documents of about 200 bytes in a queue topic of 4 partitions. One or four consumers,
each its own process, receive it with `receive_many(1000)` and ack message by message. `in_flight`
is 5000, and the rest are the defaults. A tracker runs beside them, and has seen every Start and End
by the end.

- "Transactional" is the setting of that name: Start and commit in one transaction, so that a
  consumer that is killed repeats nothing.
- "A bare consumer" reads the same topic in the same batches and commits each. It cannot ack single
  messages, and nothing comes again.
- "A marker for each message" writes and awaits a Start, commits, and writes an End for each
  message, as kafka-mq-go does.
- "Too late" is the time behind `redeliver_after` after which a message that was never acked reached
  its consumer's program again, at 200 messages a second.
- "A hop" is the way of a message through Kafka, from send to receive.

Clocks start when all have their partitions and the clients' waiting messages are gone. The aims are
kmq's results on a machine like this, without a tracker that keeps messages alive or carries their
content."""
LIMITS: Final = """\
Every message goes through Kafka twice, once as itself and once in its Start, and Python is used on
both ways. A redelivery waits for the end of the markers topic to be read and takes a transaction:
half a dozen round trips, each of which waits for its turn on a busy machine."""


def measure(setting: Setting) -> Section:
    """Receive the same backlog in turns, with our consumers and the rivals."""
    count, few = setting.scale(200_000, 20_000), setting.scale(10_000, 6000)
    sides: dict[str, Callable[[], float]] = {}
    for number in _AIMS:
        rows = count * (number // 2 or 1)
        for role in ("ours", "bare"):
            sides[f"{role} {number}"] = partial(_rate, setting, role, number, rows)
        sides[f"transactional {number}"] = partial(
            _rate, setting, "ours", number, rows, transactional=True
        )
    sides["each 1"] = partial(_rate, setting, "each", 1, few)
    sides["late"] = partial(_measure_delay, setting, "late", setting.scale(400, 100))
    sides["hop"] = partial(_measure_delay, setting, "hop", setting.scale(400, 100))
    return Section(
        "queue",
        METHOD,
        compare(setting.interleave(sides, setting.scale(3, 1))),
        limits=LIMITS,
    )


def compare(found: dict[str, tuple[float, ...]]) -> tuple[Comparison, ...]:
    """Compare the rates and times with those of the rivals, and with the aims."""
    rates = [
        Comparison(
            f"receive and ack, {how}{number} {'consumer' if number == 1 else 'consumers'}",
            "a bare consumer" if number == 1 else f"{number} bare consumers",
            "messages/s",
            found[f"{role} {number}"],
            found[f"bare {number}"],
            aim,
        )
        for number, least in _AIMS.items()
        for role, how, aim in (
            ("ours", "", Aim(least, at_least=True, figure=OURS)),
            ("transactional", "transactional, ", None),
        )
    ]
    each = Comparison(
        "receive and ack, 1 consumer",
        "a marker for each message",
        "messages/s",
        found["ours 1"],
        found["each 1"],
    )
    late = Comparison(
        "redelivered too late by, p99",
        "a hop, p99",
        "ms",
        found["late"],
        found["hop"],
        Aim(_LATE_MS, at_least=False, figure=OURS),
    )
    return (*rates, each, late)


def _rate(
    setting: Setting, role: str, consumers: int, count: int, *, transactional: bool = False
) -> float:
    """Return the messages a second that *consumers* process together."""
    settings = _make_settings(setting, transactional=transactional)
    with QueueProducer(settings) as producer:
        producer.send_many(QUEUE, (data for _, data in documents(count + consumers * WARM)))
    with ExitStack() as stack:
        tracker = _Worker(stack, "tracker", settings) if role == "ours" else None
        workers = [_Worker(stack, role, settings) for _ in range(consumers)]
        _await_balance(setting, settings, consumers)
        for worker in workers:
            worker.start()
        found = [worker.result() for worker in workers]
        if tracker:
            tracker.start()
            counted = tracker.result()
            if not counted["received"] == counted["acked"] >= count:
                raise RuntimeError(f"the tracker has seen {counted} of {count} messages")
    began, ended = min(each["began"] for each in found), max(each["ended"] for each in found)
    return float(sum(each["count"] for each in found) / (ended - began))


def _measure_delay(setting: Setting, role: str, count: int) -> float:
    """Return the 99th percentile of the ms that messages are late, or on their way."""
    settings = _make_settings(setting, redeliver_after=1.0, hold=0.0)
    with ExitStack() as stack:
        tracker = _Worker(stack, "tracker", settings)
        worker = _Worker(stack, role, settings)
        _await_balance(setting, settings, 1)
        worker.start()
        with QueueProducer(settings) as producer:
            for number in range(count + 1):
                producer.send(QUEUE, repr(time.time()).encode())
                time.sleep(_PACE if number else _SETTLING)
        found = worker.result()["late"]
        tracker.start()
        tracker.result()
    if len(found) != count + 1:
        raise RuntimeError(f"{len(found)} of {count + 1} messages came")
    return percentile(found[1:], 0.99)


def _make_settings(setting: Setting, **more: float) -> QueueSettings:
    name = f"queue-{uuid.uuid4().hex[:8]}"
    settings = settings_of(
        bootstrap_servers=setting.services.broker.bootstrap_servers,
        queue_topic=name,
        markers_topic=f"{name}-markers",
        dead_letter_topic=f"{name}-dead",
        **{"in_flight": WARM, "session_timeout": 6.0, **more},
    )
    make_topics(settings, _PARTITIONS)
    return settings


def _await_balance(setting: Setting, settings: QueueSettings, consumers: int) -> None:
    """Wait until each consumer has its share of the partitions."""
    admin = setting.services.broker.admin()
    group = settings.consumer_group(QUEUE)

    def shared() -> bool:
        members = admin.describe_consumer_groups([group])[group].result().members
        shares = [len(member.assignment.topic_partitions) for member in members]
        return shares == [_PARTITIONS // consumers] * consumers

    wait_until(shared, _PATIENCE, "every consumer has its partitions", pause=0.1)


class _Worker:
    """A process of :mod:`benchmarks.queue_workers`."""

    def __init__(self, stack: ExitStack, role: str, settings: QueueSettings) -> None:
        command = [sys.executable, "-m", "benchmarks.queue_workers", role]
        self._process = subprocess.Popen(
            [*command, settings.model_dump_json()],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(self._process.kill)
        stack.enter_context(self._process)
        self._read_line()

    def start(self) -> None:
        """Start it, or end a tracker."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def result(self) -> Any:  # noqa: ANN401 - what its role measures
        """Wait for its end, and return its measurements."""
        return json.loads(self._read_line())

    def _read_line(self) -> str:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        return self._process.stdout.readline()
