"""Memory of every process of a running pipeline, idle and after a backlog."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psutil  # type: ignore[import-untyped]

from benchmarks.figures import OURS, Aim, Comparison, Section
from benchmarks.messages import documents
from benchmarks.services import Topic, import_test_tool
from benchmarks.setting import wait_until
from transporter.log.filesystem import RealFileSystem
from transporter.log.meta import published_offset

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benchmarks.setting import Setting

_MIB: Final = 2**20
_LOOK: Final = 0.2
_PATIENCE: Final = 300.0
_ROUTES: Final = 2
_SMALL_ROUTES: Final = 32
_IDLE_MIB: Final = 300.0
_SMALL_MIB: Final = 1.2 * 1024 / _SMALL_ROUTES
_PIPELINE: Final = """\
name: memory
log: {{dir: log}}
readers:
  - {{name: lines, adaptor: file, path: "in/*.jsonl", follow: true}}
routes:
  - name: first
    writer: {{adaptor: kafka, bootstrap_servers: "{servers}", topic: memory-0}}
  - name: second
    writer: {{adaptor: kafka, bootstrap_servers: "{servers}", topic: memory-1}}
"""
_IDLE: Final = """\
name: idle
log: {dir: log}
readers:
  - {name: lines, adaptor: file, path: "in/*.jsonl", follow: true}
routes:
"""
_IDLE_ROUTE: Final = """\
  - {{name: route-{number}, writer: {writer}}}
"""

METHOD: Final = """\
A pipeline with one file reader and two Kafka routes. First it is idle with both workers
connected. Then the broker is frozen while {count} messages of about 200 bytes come into the log.
Then the broker continues, and both routes deliver the backlog in slices as large as their
defaults allow.

"After" is when the broker has all of it. RSS counts shared pages in every process that maps
them. USS counts only memory that would be freed by that process's end. The peak is the largest
of looks every {look} s.

"One Kafka route" and "{small} small routes" are pipelines of their own that have nothing to
deliver. The small routes write to files."""
LIMITS: Final = """\
Over half of one route's memory is the JVM: Spark's classes, their compiled code, its smallest heap.
Other collectors and smaller heaps took more, or as much. Each small route has a worker of its own,
a process of 75 MiB of which 26 are its own: workers are forked, and pages that all of them share
count in the RSS of each."""
NOTE: Final = "Peak RSS on the way: {peaks} (MiB)."


@dataclass(frozen=True, slots=True)
class Use:
    """Memory of one kind of process, in MiB, summed over those of that kind."""

    rss: float
    uss: float


class Family:
    """The processes of one engine, by kind."""

    def __init__(self, engine: Any) -> None:  # noqa: ANN401 - the tests' Running
        """Look at *engine*."""
        self._engine = engine

    def measure_use(self) -> dict[str, Use]:
        """Return the current memory of each kind of process."""
        found: dict[str, list[Any]] = {}
        for process in self._processes():
            try:
                found.setdefault(self._kind(process), []).append(process.memory_full_info())
            except psutil.NoSuchProcess:
                continue
        return {
            kind: Use(sum(one.rss for one in each) / _MIB, sum(one.uss for one in each) / _MIB)
            for kind, each in found.items()
        }

    def measure_rss(self) -> dict[str, float]:
        """Return the resident memory of each kind, in MiB. Cheaper than :meth:`measure_use`."""
        found: dict[str, float] = {}
        for process in self._processes():
            try:
                kind, rss = self._kind(process), process.memory_info().rss / _MIB
            except psutil.NoSuchProcess:
                continue
            found[kind] = found.get(kind, 0.0) + rss
        return found

    def _processes(self) -> list[psutil.Process]:
        return [psutil.Process(self._engine.process.pid), *self._engine.descendants()]

    def _kind(self, process: psutil.Process) -> str:
        if process.pid == self._engine.process.pid:
            return "engine"
        if process.name() == "java":
            return "JVM"
        if "transporter.spark.host" in process.cmdline():
            return "Spark host"
        parent = process.parent()
        return "worker daemon" if parent and parent.name() == "java" else "workers"


def measure(setting: Setting) -> Section:
    """Take memory before and after the backlog."""
    count = setting.scale(500_000, 50_000)
    broker = setting.services.broker
    topics = [Topic(broker, f"memory-{number}") for number in range(_ROUTES)]
    folder = _pipeline(setting, count)
    setting.report("starting an engine")
    with import_test_tool("acceptance_tools").running(folder / "pipeline.yaml") as engine:
        for route in ("first", "second"):
            engine.await_event("worker-connected", route=route)
        family = Family(engine)
        idle = family.measure_use()
        with _peaks(family) as peaks:
            _log_backlog(setting, folder, count)
            _deliver_backlog(setting, topics, count)
        after = family.measure_use()
        engine.stop()
    for topic in topics:
        topic.close()
    note = NOTE.format(peaks=", ".join(f"{kind} {peak:.0f}" for kind, peak in peaks.items()))
    small = setting.scale(_SMALL_ROUTES, 4)
    method = METHOD.format(count=count, look=_LOOK, small=small)
    found = (*_compare(idle, after), *_measure_idle(setting, small))
    return Section("memory", method, found, (note,), LIMITS)


def _measure_idle(setting: Setting, small: int) -> Iterator[Comparison]:
    """Take the memory of pipelines that wait, against what they may have."""
    servers = setting.services.broker.bootstrap_servers
    use = _idle_use(setting, [f'{{adaptor: kafka, bootstrap_servers: "{servers}", topic: idle}}'])
    yield _bounded(
        "one Kafka route, all processes, USS", sum(each.uss for each in use.values()), _IDLE_MIB
    )
    use = _idle_use(setting, [f"{{adaptor: file, path: out-{n}.jsonl}}" for n in range(small)])
    workers = use["workers"]
    yield _bounded(f"{small} small routes, workers, RSS", workers.rss, small * _SMALL_MIB)


def _idle_use(setting: Setting, writers: list[str]) -> dict[str, Use]:
    """Return the memory of a pipeline with a route for each of *writers*, with its workers."""
    setting.report(f"starting an engine ({len(writers)} routes)")
    folder = setting.make_folder(f"idle-{len(writers)}")
    (folder / "in").mkdir()
    routes = (_IDLE_ROUTE.format(number=n, writer=each) for n, each in enumerate(writers))
    (folder / "pipeline.yaml").write_text(_IDLE + "".join(routes))
    with import_test_tool("acceptance_tools").running(folder / "pipeline.yaml") as engine:
        for number in range(len(writers)):
            engine.await_event("worker-connected", route=f"route-{number}")
        use = Family(engine).measure_use()
        engine.stop()
    return use


def _bounded(what: str, found: float, limit: float) -> Comparison:
    aim = Aim(limit, at_least=False, figure=OURS)
    return Comparison(what, "what it may take", "MiB", (found,), (limit,), aim)


def _pipeline(setting: Setting, count: int) -> Path:
    """Return a folder with a pipeline and the lines that it is to read later."""
    folder = setting.make_folder("engine")
    (folder / "in").mkdir()
    servers = setting.services.broker.bootstrap_servers
    (folder / "pipeline.yaml").write_text(_PIPELINE.format(servers=servers))
    with (folder / "lines.jsonl").open("wb") as file:
        file.writelines(data + b"\n" for _, data in documents(count))
    return folder


def _log_backlog(setting: Setting, folder: Path, count: int) -> None:
    """Log *count* messages while the broker is frozen."""
    setting.report(f"logging {count} messages while the broker is frozen")
    files, log = RealFileSystem(), folder / "log"
    setting.services.broker.pause()
    try:
        (folder / "lines.jsonl").rename(folder / "in" / "lines.jsonl")
        wait_until(
            lambda: (published_offset(files, log) or 0) >= count - 1, _PATIENCE, f"{count} entries"
        )
    finally:
        setting.services.broker.resume()


def _deliver_backlog(setting: Setting, topics: Sequence[Topic], count: int) -> None:
    """Wait until each of *topics* holds *count* messages."""
    setting.report("delivering them")
    text = f"{count} messages in every topic"
    wait_until(lambda: all(topic.end >= count for topic in topics), _PATIENCE, text, pause=_LOOK)


@contextmanager
def _peaks(family: Family) -> Iterator[dict[str, float]]:
    """Keep the largest resident memory of each kind of process seen within the block."""
    peaks: dict[str, float] = {}
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK):
            for kind, rss in family.measure_rss().items():
                peaks[kind] = max(rss, peaks.get(kind, 0.0))

    thread = threading.Thread(target=look, name="peaks", daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()


def _compare(idle: dict[str, Use], after: dict[str, Use]) -> Iterator[Comparison]:
    """Compare each kind of process with itself, and all of them together."""
    for kind in sorted(idle.keys() & after.keys()):
        for measure in ("rss", "uss"):
            new, old = getattr(after[kind], measure), getattr(idle[kind], measure)
            yield _growth(f"{kind}, {measure.upper()}", new, old)
    yield _growth(
        "all, USS",
        sum(use.uss for use in after.values()),
        sum(use.uss for use in idle.values()),
    )


def _growth(what: str, after: float, idle: float) -> Comparison:
    return Comparison(f"{what}, after the backlog", "idle", "MiB", (after,), (idle,))
