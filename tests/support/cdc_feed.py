"""A reader in a process of its own, with the engine's feed and a log on disk, and nothing else.

Run as a program this file is that process: ``python cdc_feed.py FILE`` reads by the first reader of
the pipeline FILE, and writes its events beside it, until SIGTERM. SIGUSR1 lifts the log's limit.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from child_paths import python_path

from transporter.engine.reading.feed import Feed
from transporter.log.commit_log import CommitLog
from transporter.log.follow import Follower
from transporter.log.reader import LogReader
from transporter.pipeline.config import load

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

PATIENCE: Final = 60.0
LOG: Final = "log"


class FeedProcess:
    """A reader in a process of its own. Its pipeline file, log and events are in *folder*."""

    def __init__(
        self, folder: Path, dsn: str, log: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        """Read by these *settings* of ``postgres-cdc`` into a log with the keys *log*."""
        self.folder = folder
        reader = {"name": "shop", "adaptor": "postgres-cdc", "dsn": dsn, **settings}
        route = {"name": "out", "writer": {"adaptor": "file", "path": "out.jsonl"}}
        document = {"log": {"dir": LOG, **(log or {})}, "readers": [reader], "routes": [route]}
        folder.mkdir(exist_ok=True)
        (folder / "pipeline.yaml").write_text(json.dumps(document))
        self._process: subprocess.Popen[bytes] | None = None
        self._baseline = 0
        self.growth = 0
        """The most bytes by which its memory has grown since its baseline, in any life.

        The baseline is the memory when it was opened, or at the last :meth:`set_baseline`.
        """

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until the reader is open."""
        opened = len(self.events("reader-opened"))
        with (self.folder / "err.txt").open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(self.folder / "pipeline.yaml")],
                stderr=errors,
                env={**os.environ, "PYTHONPATH": python_path()},
            )
        ends = time.monotonic() + PATIENCE
        while len(self.events("reader-opened")) == opened:
            assert self._process.poll() is None, (self.folder / "err.txt").read_text()
            assert time.monotonic() < ends, "the reader does not open"
            time.sleep(0.05)
        self._baseline = self.measure("VmRSS")

    def set_baseline(self) -> int:
        """Measure the growth from now on: that of a reader at work. Return that until now."""
        before, self._baseline = self._baseline, self.measure()
        return self._baseline - before

    def measure(self, what: str = "VmHWM") -> int:
        """Return the process's memory in bytes, by default the most that it ever had."""
        assert self._process is not None
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == what:
                return int(value.split()[0]) * 1024
        raise AssertionError(f"no {what}: the process has ended")

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self.growth = max(self.growth, self.measure() - self._baseline)
        process, self._process = self._process, None
        process.kill()
        process.wait(PATIENCE)

    def lift_limit(self) -> None:
        """Let the log grow without a limit."""
        assert self._process is not None
        self._process.send_signal(signal.SIGUSR1)

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Return its events of these names."""
        file = self.folder / "events.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [each for each in found if not names or each["event"] in names]

    def await_event(self, name: str, seconds: float = PATIENCE, **details: Any) -> None:
        """Wait for an event of this name with these *details*."""
        ends = time.monotonic() + seconds
        while not any(details.items() <= each.items() for each in self.events(name)):
            assert self._process is not None
            assert self._process.poll() is None, self.events()[-3:]
            assert time.monotonic() < ends, f"no {name}: {self.events()[-3:]}"
            time.sleep(0.1)

    @property
    def last_offset(self) -> int:
        """The last offset of the log. The process may be running."""
        with Follower(self.folder / LOG, 0) as follower:
            return follower.confirmed_offset()

    def entries(self) -> Iterator[pa.RecordBatch]:
        """Yield what the log has. The process must have ended."""
        yield from logged(self.folder / LOG)


def logged(directory: Path) -> Iterator[pa.RecordBatch]:
    """Yield the entries of the log in *directory*, which no process owns."""
    with CommitLog.open(directory) as log:
        last = log.durable
    with LogReader(directory) as reader:
        yield from reader.read(0, last)


def main(file: Path) -> None:
    """Be the process."""
    events = (file.parent / "events.jsonl").open("a", buffering=1)

    def tell(event: str, **details: Any) -> None:
        events.write(json.dumps({"event": event, "at": time.time(), **details}, default=str) + "\n")

    pipeline, ended = load(file, {}), threading.Event()
    log = CommitLog.open(
        pipeline.log.dir,
        segment_bytes=pipeline.log.segment_bytes,
        compression=pipeline.log.codec,
        max_bytes=pipeline.log.max_bytes,
    )
    feed = Feed(pipeline.readers[0], log, tell, lambda _: ended.set())
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGUSR1, lambda *_: log.set_max_bytes(None))
    feed.start()
    while not ended.wait(0.2):
        pass
    feed.stop()
    feed.wait_until_read()
    feed.finish()
    with suppress(OSError):
        log.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
