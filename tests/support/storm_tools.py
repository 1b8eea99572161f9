"""An engine between topics of Kafka, and the faults of it, its network and its broker."""

from __future__ import annotations

import json
import random
import signal
import statistics
import sys
import threading
import time
from collections import Counter, defaultdict
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

import psutil
from acceptance_tools import Running, gone
from background import Background
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from leader_tools import Seen
from services.kafka import free_port

from transporter.testing import FaultyProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from services.kafka import Broker

SESSION = 6.0
"""Seconds of silence after which the group reassigns an engine's partitions."""
POLLS = 8.0
"""Seconds without a poll after which an engine leaves the group by itself."""
PATIENCE = 120.0
"""Seconds within which all messages must flow again, unaided."""
KEYS = 24
PARTITIONS = 6


@contextmanager
def proxied(broker: Broker, count: int) -> Iterator[list[FaultyProxy]]:
    """Put proxies before *broker*. A client that connects through one stays behind it."""
    with ExitStack() as stack:
        ports, proxies = [free_port() for _ in range(count)], list[FaultyProxy]()
        for port in ports:
            proxies.append(stack.enter_context(FaultyProxy(("127.0.0.1", port))))
        broker.advertise({port: proxy.port for port, proxy in zip(ports, proxies, strict=True)})
        broker.stop()
        broker.start()
        yield proxies


def pipeline_of(servers: str, reader: dict[str, Any], writer: dict[str, Any]) -> dict[str, Any]:
    """Return a pipeline from the topic ``source`` to ``target``, with the given settings."""
    patience = {"session.timeout.ms": SESSION * 1000, "max.poll.interval.ms": POLLS * 1000}
    kafka = {"adaptor": "kafka", "bootstrap_servers": servers}
    source = {"name": "source", "topics": ["source"], "group": "storm", "client": patience}
    return {
        "name": "storm",
        "log": {"dir": "log"},
        "readers": [kafka | source | reader],
        "routes": [{"name": "target", "writer": kafka | {"topic": "target"} | writer}],
    }


class Numbers(Background):
    """Produces messages of some keys, numbered by key, in a thread of its own.

    A message holds its key, its number, and the monotonic time at which it was made.
    """

    def __init__(self, broker: Broker, topic: str, rate: float) -> None:
        super().__init__("numbers")
        self._topic, self._pause = topic, 0.02
        self._burst = round(rate * self._pause)
        self._producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,
                "message.timeout.ms": 600_000,
                "reconnect.backoff.max.ms": 500,
            }
        )
        self.failures: list[str] = []
        self.sent: dict[str, int] = defaultdict(int)

    def stop(self) -> None:
        """Stop producing, and wait until the broker has all messages."""
        super().stop()
        assert self._producer.flush(120) == 0
        assert self.failures == []

    def _run(self) -> None:
        chance = random.Random()
        while not self._stopping.wait(self._pause):
            for _ in range(self._burst):
                self._send(f"k{chance.randrange(KEYS)}")
            self._producer.poll(0)

    def _send(self, key: str) -> None:
        self.sent[key] += 1
        value = json.dumps({"key": key, "n": self.sent[key], "at": time.monotonic()})
        self._producer.produce(self._topic, value, key, on_delivery=self._heard)

    def _heard(self, error: object, _: object) -> None:
        if error is not None:
            self.failures.append(str(error))


class Arrivals(Background):
    """Reads a topic's committed messages as they come, in a thread of its own."""

    def __init__(self, broker: Broker, topic: str) -> None:
        super().__init__("arrivals")
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "arrivals",
                "enable.auto.commit": False,
                "fetch.queue.backoff.ms": 10,
                "log_level": 0,
                "reconnect.backoff.max.ms": 500,
            }
        )
        places = [TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(PARTITIONS)]
        self._consumer.assign(places)
        self._changed = threading.Condition()
        self._made: dict[str, float] = {}
        self._number: dict[str, int] = {}

    def stop(self) -> None:
        """Stop reading."""
        super().stop()
        self._consumer.close()

    def await_made_since(self, moment: float, seconds: float) -> float | None:
        """Wait until each key has a message that was made since *moment*.

        Return the seconds since then, or ``None`` when it was not within *seconds*.
        """
        with self._changed:
            found = self._changed.wait_for(lambda: self._since(moment), seconds)
            return time.monotonic() - moment if found else None

    def await_all(self, sent: dict[str, int], seconds: float) -> bool:
        """Wait until the last message of each key has come. Return true if it has."""
        with self._changed:
            return self._changed.wait_for(
                lambda: all(self._number.get(key, 0) >= last for key, last in sent.items()), seconds
            )

    def _since(self, moment: float) -> bool:
        return len(self._made) == KEYS and min(self._made.values()) >= moment

    def _run(self) -> None:
        while not self._stopping.is_set():
            found = self._consumer.consume(500, 0.05)
            with self._changed:
                for record in found:
                    if record.error() is None:  # otherwise the broker is away, and comes back
                        self._note(json.loads(record.value()))
                self._changed.notify_all()

    def _note(self, told: dict[str, Any]) -> None:
        key = told["key"]
        self._made[key] = max(self._made.get(key, 0.0), told["at"])
        self._number[key] = max(self._number.get(key, 0), told["n"])


class Chain:
    """One real engine behind a proxy, and its broker: faults by name, each undone on return."""

    def __init__(
        self, pipeline: Path, broker: Broker, proxy: FaultyProxy, chance: random.Random
    ) -> None:
        self._pipeline, self._broker, self._proxy = pipeline, broker, proxy
        self._chance = chance
        self.lives: list[Running] = []
        self.faults: dict[str, Callable[[], None]] = {
            "broker restart": self._restart_broker,
            "broker kill": self._kill_broker,
            "broker pause": self._pause_broker,
            "engine restart": self._restart_engine,
            "engine kill": self._kill_engine,
            "engine pause": self._pause_engine,
            "worker kill": self._kill_worker,
            "network hang": self._hang,
            "network refuse": self._refuse,
            "network cut": self._cut,
        }

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy.heal()
        self._broker.resume()
        if self._engine.process.poll() is None:
            self._signal(signal.SIGCONT)
            gone(self._engine.kill())
        # For the analysis of a failure.
        lines = (json.dumps(each) for life in self.lives for each in [*life.events, life.noise])
        self._pipeline.with_suffix(".jsonl").write_text("\n".join(lines))

    def told(self, *names: str) -> list[dict[str, Any]]:
        """Return the events of these names from any of the engine's lives."""
        return [each for life in self.lives for each in life.events if each["event"] in names]

    def stop(self) -> int:
        """End the engine in order. Return its exit code."""
        return self._engine.stop()

    @property
    def _engine(self) -> Running:
        return self.lives[-1]

    def _start(self) -> None:
        self.lives.append(Running(self._pipeline))

    def _restart_broker(self) -> None:
        self._broker.stop()
        self._rest(0, 3)
        self._broker.start()

    def _kill_broker(self) -> None:
        self._broker.kill()
        self._rest(0, 3)
        self._broker.start()

    def _pause_broker(self) -> None:
        self._broker.pause()
        self._rest(3, 12)
        self._broker.resume()

    def _restart_engine(self) -> None:
        assert self._engine.stop() == 0
        self._start()

    def _kill_engine(self) -> None:
        left = self._engine.kill()
        self._start()  # at once, as a supervisor does: processes of the dead one may still work
        assert gone(left, 30) == []

    def _pause_engine(self) -> None:
        self._signal(signal.SIGSTOP)
        self._rest(SESSION + 1, POLLS + 5)
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for each in [psutil.Process(self._engine.process.pid), *self._engine.descendants()]:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(number)

    def _kill_worker(self) -> None:
        for victim in self._engine.descendants("worker"):
            victim.kill()

    def _hang(self) -> None:
        self._proxy.hang()
        self._rest(3, 15)
        self._proxy.heal()

    def _refuse(self) -> None:
        self._proxy.refuse()
        self._rest(1, 10)
        self._proxy.heal()

    def _cut(self) -> None:
        assert self._proxy.cut() > 0

    def _rest(self, least: float, most: float) -> None:
        time.sleep(self._chance.uniform(least, most))


def again(items: Iterable[object]) -> int:
    """Return the number of *items* that are repetitions."""
    counts = Counter(items)
    return counts.total() - len(counts)


def missing(deliveries: Iterable[Seen], sent: dict[str, int]) -> list[str]:
    """Return the sent messages that are not among *deliveries*."""
    there = set(deliveries)
    every = (Seen(key, n) for key, last in sent.items() for n in range(1, last + 1))
    return [str(each) for each in every if each not in there]


def tell(text: str) -> None:
    """Print *text* to stderr."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - for whoever runs it


def table(took: Iterable[tuple[str, float]]) -> str:
    """Return the durations of recoveries, by fault."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for what, each in took:
        seconds[what].append(each)
    lines = [
        f"{what:16} {len(each):3}  median {statistics.median(each):6.2f} s  max {max(each):6.2f} s"
        for what, each in sorted(seconds.items())
    ]
    return "\n".join(lines)
