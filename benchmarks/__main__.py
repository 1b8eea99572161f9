"""``python -m benchmarks [NAME …] [--quick]``: runs benchmarks and writes their results.

The results go to ``build/bench.json``, section by section. A section that fails is left out, and
the exit code is 1. Those of a whole, full run go to ``docs/benchmarks.md`` too,
and to ``docs/plots/results.json``, of which ``make plots`` draws the pictures of that page.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.machine import describe
from benchmarks.report import Report, markdown, number
from benchmarks.services import Services
from benchmarks.setting import ROOT, Setting
from transporter.process_limits import switch_threads_often

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.figures import Section

CATALOGUE: Final = {
    "log-append": "benchmarks.log_append",
    "group-commit": "benchmarks.group_commit",
    "log-stores": "benchmarks.log_stores",
    "log-read": "benchmarks.log_read",
    "log-reopen": "benchmarks.log_reopen",
    "compaction": "benchmarks.compaction",
    "log-size": "benchmarks.log_size",
    "data-source": "benchmarks.data_source",
    "slice-overhead": "benchmarks.slice_overhead",
    "cluster": "benchmarks.cluster",
    "frames": "benchmarks.frames",
    "steps": "benchmarks.steps",
    "kafka-read": "benchmarks.kafka_read",
    "kafka-write": "benchmarks.kafka_write",
    "outbox-claims": "benchmarks.outbox_claims",
    "outbox-kafka-backlog": "benchmarks.outbox_backlog",
    "cdc": "benchmarks.cdc",
    "postgres-write": "benchmarks.postgres_write",
    "kafka-kafka": "benchmarks.kafka_kafka",
    "latency": "benchmarks.latency",
    "cdc-latency": "benchmarks.cdc_latency",
    "file-file": "benchmarks.file_file",
    "queue": "benchmarks.queue",
    "start": "benchmarks.start",
    "memory": "benchmarks.memory",
    "growth": "benchmarks.growth",
}


_RESULTS: Final = ROOT / "build" / "bench.json"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmarks that *arguments* name, all of them by default."""
    options = _parse_options(arguments)
    names = options.names or list(CATALOGUE)
    began = time.monotonic()
    progress = partial(_print_progress, began)
    # Stops all started processes, too, when a user loses patience.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    switch_threads_often()  # As an engine does, whose parts are measured here.
    with tempfile.TemporaryDirectory(prefix="transporter-bench-", dir=options.dir) as name:
        folder = Path(name)
        machine = describe(folder)
        with ExitStack() as stack:
            services = Services(folder, stack, partial(progress, "services"))
            sections: list[Section] = []
            for each in names:
                setting = Setting(folder / each, services, options.quick, partial(progress, each))
                try:
                    sections.append(_measure(setting, each))
                except Exception:  # noqa: BLE001 - the others take half an hour
                    progress(each, traceback.format_exc())
                took, load = time.monotonic() - began, os.getloadavg()[0]
                report = Report(machine, tuple(sections), options.quick, took, load)
                _write_results(report)
    is_whole = len(sections) == len(names)
    if is_whole and names == list(CATALOGUE) and not options.quick:
        _write_page(report)
    sys.stdout.write(markdown(report))
    return 0 if is_whole else 1


def _parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = ", ".join(CATALOGUE)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{known}; all by default")
    parser.add_argument("--quick", action="store_true", help="a smoke run: small and few")
    parser.add_argument("--dir", help="a folder on the disk to be measured")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in CATALOGUE]:
        parser.error(f"there is no benchmark {unknown[0]}; there are {known}")
    return options


def _print_progress(began: float, name: str, text: str) -> None:
    sys.stderr.write(f"{time.monotonic() - began:5.0f} s  {name}: {text}\n")
    sys.stderr.flush()


def _measure(setting: Setting, name: str) -> Section:
    section: Section = importlib.import_module(CATALOGUE[name]).measure(setting)
    for found in section.comparisons:
        verdict = {True: ": reached", False: ": missed", None: ""}[found.is_reached]
        ratio = number(found.ratio.median)
        setting.report(f"{found.subject} = {ratio} x {found.rival}{verdict}")
    return section


def _write_results(report: Report) -> None:
    _RESULTS.parent.mkdir(exist_ok=True)
    _RESULTS.write_text(json.dumps(asdict(report), indent=1), encoding="utf-8")


def _write_page(report: Report) -> None:
    """Write the page, and the results of which its pictures are drawn."""
    plots = ROOT / "docs" / "plots"
    plots.mkdir(exist_ok=True)
    (plots.parent / "benchmarks.md").write_text(markdown(report), encoding="utf-8")
    shutil.copyfile(_RESULTS, plots / "results.json")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
