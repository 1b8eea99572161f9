"""A real Apache Kafka broker for tests, run from its jars.

The jars are listed in ``kafka.lock`` and kept in ``.cache/kafka``, or below the
folder that ``TRANSPORTER_TEST_CACHE`` names. ``python -m services.kafka --fetch``
(with ``tests`` on the path) fetches them ahead of a test run.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from services.maven import Absent, cache_folder, fetch, fetch_ahead, locked

from transporter.errors import HostFailed
from transporter.spark.java_runtime import find_java

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

B = TypeVar("B", bound="Broker")

LOCK = Path(__file__).with_name("kafka.lock")
START_SECONDS = 60.0
STOP_SECONDS = 30.0
CLUSTER_ID = "dHJhbnNwb3J0ZXItdGVzdA"

# The broker dies with the process that started it, even if that one is killed.
_LEASH = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
log.dirs={data}
auto.create.topics.enable=false
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
offsets.retention.minutes=43200
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
"""

# The last line of a name is the effective one.
_ADVERTISED = """\
listeners={listeners}
advertised.listeners={advertised}
listener.security.protocol.map={protocols}
"""


def fetch_jars() -> list[Path]:
    """Return the paths of the broker's jars, fetching those that are absent."""
    return fetch(locked(LOCK), cache_folder() / "kafka")


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens, for a broker."""
    # Below the range that outgoing connections use: while the broker is down, a client
    # that keeps trying could otherwise be given the broker's own port.
    for port in random.SystemRandom().sample(range(15_000, 30_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise Absent("no free port between 15000 and 30000")


class Broker:
    """One Kafka broker on loopback. Keeps its topics and ports over stop and start.

    Start it from the main thread, because it dies with the thread that started it.
    """

    def __init__(self, java: Path, jars: list[Path], folder: Path) -> None:
        self._folder = folder
        heap = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        path = os.pathsep.join(map(str, jars))
        self._java = [str(java / "bin" / "java"), *heap, "-cp", path]
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._controller = free_port()
        (folder / "server.properties").write_text(
            _PROPERTIES.format(port=self._port, controller=self._controller, data=folder / "data")
        )

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self._port}"

    @property
    def output(self) -> Path:
        """The file with all that the broker printed."""
        return self._folder / "broker.out"

    def advertise(self, ports: Mapping[int, int]) -> None:
        """Listen on each of *ports*, too, from the next start on.

        A client there gets as the broker's address the port of 127.0.0.1 to which it maps: that of
        a proxy, which thus stays between client and broker.
        """
        listeners = [f"PLAINTEXT://127.0.0.1:{self._port}"]
        controller = f"CONTROLLER://127.0.0.1:{self._controller}"
        inside = [f"BEHIND{port}://127.0.0.1:{port}" for port in ports]
        outside = [f"BEHIND{port}://127.0.0.1:{told}" for port, told in ports.items()]
        names = ["PLAINTEXT", "CONTROLLER", *(f"BEHIND{port}" for port in ports)]
        text = _ADVERTISED.format(
            listeners=",".join([*listeners, controller, *inside]),
            advertised=",".join(listeners + outside),
            protocols=",".join(f"{name}:PLAINTEXT" for name in names),
        )
        with (self._folder / "server.properties").open("a") as file:
            file.write(text)

    def format(self) -> None:
        """Make the empty storage that the first start needs."""
        command = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c"]
        subprocess.run(
            [*self._java, *command, self._folder / "server.properties"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=START_SECONDS,
            check=True,
        )

    def start(self) -> None:
        """Start it and wait until it answers. Does nothing when it runs."""
        if self._process and self._process.poll() is None:
            return
        command = [*self._java, "kafka.Kafka", str(self._folder / "server.properties")]
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _LEASH, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._await(self._process)

    def stop(self) -> None:
        """Stop it as an operator would. Does nothing when it is down."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze it: connections stay open and nothing is answered from now on."""
        if self._process:
            self._process.send_signal(signal.SIGSTOP)
            # Its threads stop one by one, and may answer until the last one has.
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let it go on after :meth:`pause`."""
        if self._process:
            self._process.send_signal(signal.SIGCONT)

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> str:
        """Create a topic and return its name. *config* are topic settings, ``_`` for ``.``."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        topic = NewTopic(name, partitions, 1, config=settings)
        admin = self.admin()  # its requests end with it
        for future in admin.create_topics([topic], operation_timeout=30).values():
            future.result(timeout=30)
        # The controller's answer may come before the broker has the topic's metadata.
        deadline = time.monotonic() + START_SECONDS
        while name not in admin.list_topics(timeout=30).topics:
            assert time.monotonic() < deadline, f"topic {name} is created and not shown"
        return name

    def damage(self, topic: str, pattern: bytes) -> None:
        """Change the last byte that *pattern* finds in the first partition's file."""
        segment = self._folder / "data" / f"{topic}-0" / "00000000000000000000.log"
        data = segment.read_bytes()
        found = re.search(pattern, data, re.DOTALL)
        assert found is not None
        with segment.open("r+b") as file:  # The broker reads it by the same cache.
            file.seek(found.end() - 1)
            file.write(bytes([data[found.end() - 1] ^ 1]))

    def admin(self) -> AdminClient:
        """Return a new administration client that stays silent about lost connections."""
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    def is_up(self) -> bool:
        """Return true if it answers, and its controller, which may have fenced it, lists it."""
        try:
            return bool(self.admin().list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    def _await(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            if self.is_up():
                return
        self.kill()
        tail = self.output.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"the Kafka broker did not start:\n{tail}")

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _absent(reason: str) -> None:
    """Skip here, or fail where every service must be there."""
    if os.environ.get("CI"):
        pytest.fail(f"no Kafka broker: {reason}")
    pytest.skip(f"no Kafka broker: {reason}")


@contextmanager
def run(kind: Callable[[Path, list[Path], Path], B], folder: Path) -> Iterator[B]:
    """Yield a running broker of *kind* with its files in *folder*, or skip the test without one."""
    try:
        java = find_java(os.environ, cache_folder())
        broker = kind(java, fetch_jars(), folder)
    except (Absent, HostFailed) as error:
        _absent(str(error))
        return
    broker.format()
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Yield a running broker, shared by the session. A test that stops it starts it again."""
    with run(Broker, tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


class DefaultBroker(Broker):
    """A broker that creates each topic that a client requests, as is Kafka's default."""

    def __init__(self, java: Path, jars: list[Path], folder: Path) -> None:
        super().__init__(java, jars, folder)
        with (folder / "server.properties").open("a") as file:
            file.write("auto.create.topics.enable=true\n")  # The last line of a name wins.


@pytest.fixture(scope="session")
def default_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Yield a running broker with Kafka's default for topics that are missing."""
    with run(DefaultBroker, tmp_path_factory.mktemp("kafka-defaults")) as broker:
        yield broker


@pytest.fixture
def kafka_topic(kafka_broker: Broker) -> str:
    """Return the name of a fresh topic with one partition, on a running broker."""
    kafka_broker.start()
    # Records of tests bear old times. The broker would remove them when it looks, every 5 minutes.
    return kafka_broker.create_topic(f"topic-{uuid.uuid4().hex[:12]}", retention_ms="-1")


@pytest.fixture
def kafka_election(kafka_broker: Broker, kafka_topic: str) -> dict[str, Any]:
    """Return an election on a fresh topic, with a term of two seconds."""
    servers = kafka_broker.bootstrap_servers
    return {"kind": "kafka", "bootstrap_servers": servers, "topic": kafka_topic, "term": "2s"}


if __name__ == "__main__":
    sys.exit(fetch_ahead(sys.argv[1:], "Kafka broker", fetch_jars))
