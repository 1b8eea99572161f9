"""Files to a file through the log, against a stream processor that keeps none."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.figures import Aim, Comparison, Section
from benchmarks.messages import documents
from benchmarks.services import of_tests
from benchmarks.setting import ROOT, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.setting import Setting

_AIM: Final = Aim(1.2, at_least=True)
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
JSON lines of about 200 bytes in {_FILES} files, through the file reader, the log, Spark and the
file writer; every second file is filtered out by its namespace, one field is omitted and one
renamed. Bytewax does the same with one worker and no log: it parses each line (as our reader
does), filters by a field, changes the document, and writes it with its own file sink. Both are up
before the clock starts; it stops when the last line is in the output, which both sync. Ours uses
two processes, Bytewax one."""
LIMITS: Final = """\
Both cores are busy: one with reading, looking at each line's JSON and compressing frames, the
other with the steps and the output."""


def measure(setting: Setting) -> Section:
    """Send the same lines through the engine and through Bytewax, in turns."""
    count = setting.scaled(1_000_000, 50_000)
    template = setting.place("lines")
    _write_lines(template, count)
    with _engine(setting) as folder:
        sides: dict[str, Callable[[], float]] = {
            "ours": _Ours(folder, template, count),
            "theirs": partial(_flow, setting.place("flow"), template, count),
        }
        found = setting.interleaved(sides, setting.scaled(3, 2))
    comparison = Comparison(
        "transporter run", "Bytewax", "messages/s", found["ours"], found["theirs"], _AIM
    )
    return Section("file-file", METHOD, (comparison,), limits=LIMITS)


def _write_lines(folder: Path, count: int) -> None:
    """Write *count* lines; the files alternate between what is kept and what is not."""
    lines = (data for _, data in documents(count))
    for number in range(_FILES):
        kind = _KINDS[(number + 1) % 2]  # the last file is kept, so its last line comes out last
        with (folder / f"{number:02}-{kind}.jsonl").open("wb") as file:
            for _ in range(count // _FILES):
                file.write(b'{"kind": "%s", %s\n' % (kind.encode(), next(lines)[1:]))


@contextmanager
def _engine(setting: Setting) -> Iterator[Path]:
    folder = setting.place("engine")
    (folder / "in").mkdir()
    pipeline = folder / "pipeline.yaml"
    pipeline.write_text(_PIPELINE)
    setting.tell("starting an engine")
    with of_tests("acceptance_tools").running(pipeline) as engine:
        engine.await_event("worker-connected", route="kept")
        yield folder
        engine.stop()


class _Ours:
    """Hands one set of files after another to the running engine."""

    def __init__(self, folder: Path, template: Path, count: int) -> None:
        self._folder, self._template, self._count = folder, template, count
        self._rounds = 0

    def __call__(self) -> float:
        """Return the messages read in a second."""
        staged = shutil.copytree(self._template, self._folder / "staged")
        output = self._folder / "out.jsonl"
        before = output.stat().st_size if output.exists() else 0
        self._rounds += 1
        began = time.perf_counter()
        for path in sorted(staged.iterdir()):
            # The reader goes by names: those of this round come after those of the last one.
            path.rename(self._folder / "in" / f"{self._rounds:03}-{path.name}")
        _await_last(output, self._count, before)
        took = time.perf_counter() - began
        staged.rmdir()
        _check(output, before, self._count)
        return self._count / took


def _flow(folder: Path, template: Path, count: int) -> float:
    """Return the messages that Bytewax reads in a second."""
    output = folder / "out.jsonl"
    output.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.flows", str(template), str(output)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None  # noqa: S101 - they are pipes
        assert process.stdout is not None  # noqa: S101
        process.stdout.readline()
        began = time.perf_counter()
        process.stdin.write("go\n")
        process.stdin.flush()
        process.stdout.readline()
        took = time.perf_counter() - began
    _check(output, 0, count)
    return count / took


def _await_last(output: Path, count: int, before: int) -> None:
    """Wait until the newest line of *output* is that of the last order."""

    def arrived() -> bool:
        if not output.exists() or (size := output.stat().st_size) <= before:
            return False
        with output.open("rb") as file:
            file.seek(max(before, size - _TAIL))
            tail = file.read()
        return tail.endswith(b"\n") and b'"order": %d,' % (count - 1) in tail

    until(arrived, _PATIENCE, f"order {count - 1} in {output}")


def _check(output: Path, before: int, count: int) -> None:
    """Refuse a figure for work that was not done."""
    with output.open("rb") as file:
        file.seek(before)
        kept = [json.loads(line) for line in file]
    if len(kept) != count // 2 or any(document["kind"] != "kept" for document in kept):
        raise RuntimeError(f"{output} holds {len(kept)} lines of {count // 2}")
