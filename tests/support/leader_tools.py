"""Engines that share one outbox: each a process with a log of its own, and none with Spark.

Run as a program this file is one of them: ``python leader_tools.py FILE`` runs the pipeline of FILE
and writes its events beside it, until SIGTERM.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import psycopg
from background import Background
from engine_tools import SparklessHost

from transporter.adaptor import AdaptorConfig, LocalPath
from transporter.errors import SinkUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from services.postgres import Database

    from transporter.adaptor import Ack, Entries, StoredOffset, WriterContext

PATIENCE = 60.0
"""Seconds after which a test stops waiting and fails."""


class SharedConfig(AdaptorConfig):
    """Output path of a :class:`SharedWriter`, and its rate of failures."""

    path: LocalPath
    faults: float = 0.0


class SharedWriter:
    """Appends to a file that all engines share, one line of key and number an entry.

    *faults* is the share of writes that fail, either before anything, or with all delivered and
    nothing acked.
    """

    Config: ClassVar[type[AdaptorConfig]] = SharedConfig

    def __init__(self, config: SharedConfig) -> None:
        self._config = config
        self._random = random.Random()

    def open(self, context: WriterContext) -> StoredOffset | None:
        pass

    def write(self, batch: Entries, ack: Ack) -> None:
        if self._random.random() < self._config.faults:
            raise SinkUnavailable("a fault before")
        lines = (f"{line(entry.message.data or b'')} {os.getpid()}\n" for entry in batch)
        with self._config.path.open("a") as file:
            file.write("".join(lines))
        if self._random.random() < self._config.faults:
            raise SinkUnavailable("a fault behind")
        ack.all()

    def close(self) -> None:
        pass


def line(data: bytes) -> str:
    """Return the key and number in a row's value."""
    row = json.loads(data)
    return f"{row['key']} {row['n']}"


class Seen(NamedTuple):
    """A delivery."""

    key: str
    number: int


class Node:
    """One engine. Its pipeline file, log and events are in *folder*."""

    def __init__(self, folder: Path, pipeline: dict[str, Any]) -> None:
        self.folder, self._pipeline = folder, pipeline
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    def change(self, do: Callable[[dict[str, Any]], object]) -> None:
        """Let *do* change its pipeline, from the next start on."""
        do(self._pipeline)

    def start(self) -> None:
        """Start it."""
        self.folder.mkdir(exist_ok=True)
        self._starts += 1
        file = self.folder / "pipeline.yaml"
        file.write_text(json.dumps(self._pipeline))
        with (self.folder / "err.txt").open("ab") as errors:
            command = [sys.executable, __file__, str(file)]
            self._process = subprocess.Popen(command, stderr=errors, start_new_session=True)

    def send(self, number: int) -> None:
        """Send a signal to the engine and its workers."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it, in order, or with SIGKILL as a crash does."""
        if self._process is None:
            return
        if number == signal.SIGKILL:
            self.send(number)
        else:
            # A signal before that point ends it as it ends any program.
            await_true(lambda: self.has_started)
            self._process.send_signal(number)
        try:
            code = self._process.wait(PATIENCE)
        finally:
            self.send(signal.SIGKILL)
        self._process = None
        errors = (self.folder / "err.txt").read_text()
        assert number == signal.SIGKILL or code == 0, (code, errors)

    def await_end(self) -> int:
        """Wait until it ends by itself. Return its exit code."""
        assert self._process is not None
        try:
            return self._process.wait(PATIENCE)
        finally:
            self.stop(signal.SIGKILL)

    @property
    def running(self) -> bool:
        """True if it was started and not stopped."""
        return self._process is not None

    @property
    def has_started(self) -> bool:
        """True if its newest process is an engine already."""
        return len(self.events("engine-started")) >= self._starts

    @property
    def ready(self) -> bool:
        """True if it takes part since its last start."""
        return len(self.events("reader-opened")) >= self._starts

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Return its events of these names."""
        file = self.folder / "events.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        told = [json.loads(line) for line in lines if line.endswith("}")]
        return [each for each in told if not names or each["event"] in names]

    @property
    def term(self) -> int | None:
        """The number of the term under which it believes to lead."""
        told = self.events("leader-acquired", "leader-refreshed", "leader-revoked", "leader-fenced")
        if not told or not told[-1]["event"].endswith(("acquired", "refreshed")):
            return None
        return int(told[-1]["term"])


class Rows(Background):
    """Inserts rows of some keys, numbered by key, in a thread of its own."""

    def __init__(self, database: Database, keys: int, pause: float) -> None:
        super().__init__("rows")
        self._database, self._keys, self._pause = database, keys, pause
        self.inserted: dict[str, int] = defaultdict(int)

    def _run(self) -> None:
        chance = random.Random()
        while not self._stopping.wait(self._pause):
            with suppress(psycopg.OperationalError):  # the server is away, rows are lost
                self._insert([f"k{chance.randrange(self._keys)}" for _ in range(20)])

    def _insert(self, keys: list[str]) -> None:
        counts = dict(self.inserted)
        values = []
        for key in keys:
            counts[key] = counts.get(key, 0) + 1
            values.append(("rows", key, json.dumps({"key": key, "n": counts[key]}), [], []))
        with self._database.connect(autocommit=False) as connection:
            connection.cursor().executemany(
                "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys,"
                " kafka_header_values) VALUES (%s, %s, %s, %s::text[], %s::text[])",
                values,
            )
        self.inserted.update(counts)


def seen(path: Path) -> Iterator[Seen]:
    """Yield the deliveries of a :class:`SharedWriter`, in order."""
    for text in path.read_text().splitlines() if path.exists() else ():
        key, number, _ = text.split()
        yield Seen(key, int(number))


def all_there(path: Path, rows: Rows) -> bool:
    """Return true if every inserted row has arrived."""
    newest: dict[str, int] = {}
    for each in seen(path):
        newest[each.key] = max(newest.get(each.key, 0), each.number)
    return all(newest.get(key, 0) >= count for key, count in rows.inserted.items())


def faults_of(deliveries: Iterator[Seen], inserted: dict[str, int]) -> list[str]:
    """Return the errors: rows that are missing, first deliveries that go back."""
    newest: dict[str, int] = defaultdict(int)
    wrong = []
    for place, each in enumerate(deliveries):
        if each.number > newest[each.key] + 1:
            wrong.append(f"{place}: {each} behind {newest[each.key]}")
        newest[each.key] = max(newest[each.key], each.number)
    short = [f"{key}: {newest[key]} of {count}" for key, count in inserted.items()]
    return wrong + [
        each for each, (key, n) in zip(short, inserted.items(), strict=True) if newest[key] < n
    ]


def going_back(deliveries: Iterator[Seen]) -> list[str]:
    """Return the places at which a key shows an earlier row behind a later one."""
    last: dict[str, int] = defaultdict(int)
    wrong = []
    for place, each in enumerate(deliveries):
        if each.number < last[each.key]:
            wrong.append(f"{place}: {each} behind {last[each.key]}")
        last[each.key] = each.number
    return wrong


def await_true(condition: Callable[[], object], seconds: float = PATIENCE) -> float:
    """Wait for *condition*. Return the seconds that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds, "it did not happen"
        time.sleep(0.02)
    return time.monotonic() - began


def main(file: Path) -> None:
    """Be an engine."""
    from crash_points import arm  # noqa: PLC0415 - the tests do without

    from transporter.control.server import attach_control  # noqa: PLC0415 - as above
    from transporter.engine.engine import Engine  # noqa: PLC0415 - as above
    from transporter.pipeline.config import load  # noqa: PLC0415 - as above

    events = (file.parent / "events.jsonl").open("a", buffering=1)

    def tell(event: str, **details: Any) -> None:
        events.write(json.dumps({"event": event, "at": time.time(), **details}, default=str) + "\n")

    arm(file.parent)
    engine = Engine(load(file, {}), SparklessHost(), tell)
    attach_control(engine, {})
    signal.signal(signal.SIGTERM, lambda *_: engine.request_stop())
    engine.start()
    while not engine.wait(0.2):
        pass
    engine.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
