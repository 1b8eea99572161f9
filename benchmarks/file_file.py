"""Files to a file through the log, against a stream processor that keeps none."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import sub
from typing import TYPE_CHECKING, Any, Final, Self

import psutil  # type: ignore[import-untyped]

from benchmarks.figures import Aim, Comparison, Section
from benchmarks.messages import documents
from benchmarks.services import import_test_tool
from benchmarks.setting import ROOT, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from benchmarks.setting import Setting

_AIM: Final = Aim(1.6, at_least=True)
_FILES: Final = 20
_PATIENCE: Final = 300.0
_TAIL: Final = 1000
_KINDS: Final = ("kept", "dropped")
_PIPELINE: Final = """\
name: file-file
log: {dir: log}
readers:
  - {name: files, adaptor: file, path: "in/*.jsonl", follow: true}
routes:
  - name: kept
    namespace: -kept$
    steps:
      - omit: {fields: [note]}
      - rename: {fields: {trace: trace_id}}
    writer: {adaptor: file, path: out.jsonl, format: data}
"""

METHOD: Final = f"""\
JSON lines of about 200 bytes in {_FILES} files go through the file reader, the log, Spark and the
file writer. Every second file is filtered out by its namespace, one field is omitted and one
renamed. Bytewax does the same with one worker and no log. It parses each line (as our reader
does), filters by a field, changes the document, and writes it with its own file sink.

Both are up before the clock starts. It stops when the last line is in the output, which both sync.
Ours uses two processes, Bytewax one. CPU seconds are those of user and system of all processes
that take part, from the same start to the same end."""
LIMITS: Final = """\
The busiest process is the worker. Three quarters of its CPU time go into the two steps, and half of
that into matching every document once for each. The engine reads, looks at each line's JSON and
logs. It takes a third less and waits for its syncs between, so its core is not always busy.
On an otherwise idle machine the worker is the limit, on a busy one the sum of both."""


def measure(setting: Setting) -> Section:
    """Send the same lines through the engine and through Bytewax, in turns."""
    count = setting.scale(1_000_000, 50_000)
    template = setting.make_folder("lines")
    _write_lines(template, count)
    folder = setting.make_folder("engine")
    with _run_engine(setting, folder) as engine:
        sides: dict[str, Callable[[], _Round]] = {
            "ours": _Ours(_engine_processes(engine), folder, template, count),
            "theirs": partial(_run_flow, setting.make_folder("flow"), template, count),
        }
        found = setting.interleave(sides, setting.scale(3, 2))
    return Section("file-file", METHOD, _compare(**found), limits=LIMITS)


@dataclass(frozen=True, slots=True)
class _Round:
    """The messages read in a second, with the CPU seconds of a million, total and one process."""

    rate: float
    cpu: float
    busiest: float

    @classmethod
    def of(cls, count: int, took: float, cpu: Sequence[float]) -> Self:
        millions = count / 1e6
        return cls(count / took, sum(cpu) / millions, max(cpu) / millions)


def _compare(ours: Sequence[_Round], theirs: Sequence[_Round]) -> tuple[Comparison, ...]:
    def comparison(subject: str, unit: str, figure: str, aim: Aim | None = None) -> Comparison:
        our_own, their_own = (
            tuple(getattr(each, figure) for each in side) for side in (ours, theirs)
        )
        return Comparison(subject, "Bytewax", unit, our_own, their_own, aim)

    return (
        comparison("transporter run", "messages/s", "rate", _AIM),
        comparison("CPU of a million, all processes", "s", "cpu"),
        comparison("CPU of a million, the busiest process", "s", "busiest"),
    )


def _cpu(processes: Sequence[psutil.Process]) -> list[float]:
    """Return the CPU seconds that each of *processes* has taken."""
    return [sum(process.cpu_times()[:2]) for process in processes]


def _write_lines(folder: Path, count: int) -> None:
    """Write *count* lines. The files alternate between lines to keep and lines to drop."""
    lines = (data for _, data in documents(count))
    for number in range(_FILES):
        kind = _KINDS[(number + 1) % 2]  # the last file is kept, so its last line comes out last
        with (folder / f"{number:02}-{kind}.jsonl").open("wb") as file:
            for _ in range(count // _FILES):
                file.write(b'{"kind": "%s", %s\n' % (kind.encode(), next(lines)[1:]))


@contextmanager
def _run_engine(setting: Setting, folder: Path) -> Iterator[Any]:
    (folder / "in").mkdir()
    pipeline = folder / "pipeline.yaml"
    pipeline.write_text(_PIPELINE)
    setting.report("starting an engine")
    with import_test_tool("acceptance_tools").running(pipeline) as engine:
        engine.await_event("worker-connected", route="kept")
        yield engine
        engine.stop()


def _engine_processes(engine: Any) -> list[psutil.Process]:  # noqa: ANN401 - the tests' Running
    return [psutil.Process(engine.process.pid), *engine.descendants()]


class _Ours:
    """A feed of one set of files after another to the running engine."""

    def __init__(
        self, processes: list[psutil.Process], folder: Path, template: Path, count: int
    ) -> None:
        self._processes, self._folder = processes, folder
        self._template, self._count = template, count
        self._rounds = 0

    def __call__(self) -> _Round:
        """Return the rate and the CPU time of reading them all."""
        staged = shutil.copytree(self._template, self._folder / "staged")
        output = self._folder / "out.jsonl"
        before = output.stat().st_size if output.exists() else 0
        self._rounds += 1
        cpu, began = _cpu(self._processes), time.perf_counter()
        for path in sorted(staged.iterdir()):
            # The reader goes by names: those of this round come after those of the last one.
            path.rename(self._folder / "in" / f"{self._rounds:03}-{path.name}")
        _await_last(output, self._count, before)
        took = time.perf_counter() - began
        spent = [*map(sub, _cpu(self._processes), cpu)]
        staged.rmdir()
        _check(output, before, self._count)
        return _Round.of(self._count, took, spent)


def _run_flow(folder: Path, template: Path, count: int) -> _Round:
    """Return the rate and the CPU time of Bytewax reading them all."""
    output = folder / "out.jsonl"
    output.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.flows", str(template), str(output)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None  # noqa: S101 - they are pipes
        assert process.stdout is not None  # noqa: S101
        process.stdout.readline()
        processes = [psutil.Process(process.pid)]
        cpu, began = _cpu(processes), time.perf_counter()
        process.stdin.write("go\n")
        process.stdin.flush()
        process.stdout.readline()
        took = time.perf_counter() - began
        spent = [*map(sub, _cpu(processes), cpu)]
    _check(output, 0, count)
    return _Round.of(count, took, spent)


def _await_last(output: Path, count: int, before: int) -> None:
    """Wait until the newest line of *output* is that of the last order."""

    def arrived() -> bool:
        if not output.exists() or (size := output.stat().st_size) <= before:
            return False
        with output.open("rb") as file:
            file.seek(max(before, size - _TAIL))
            tail = file.read()
        return tail.endswith(b"\n") and b'"order": %d,' % (count - 1) in tail

    wait_until(arrived, _PATIENCE, f"order {count - 1} in {output}")


def _check(output: Path, before: int, count: int) -> None:
    """Raise if the output is incomplete."""
    with output.open("rb") as file:
        file.seek(before)
        kept = [json.loads(line) for line in file]
    if len(kept) != count // 2 or any(document["kind"] != "kept" for document in kept):
        raise RuntimeError(f"{output} holds {len(kept)} lines of {count // 2}")
