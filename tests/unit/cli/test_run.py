"""The loop of ``transporter run``, with a real engine and without Spark."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import Events, SparklessHost, make_pipeline

from transporter.cli.run import _run_until_stopped, _Signals, run_pipeline
from transporter.cli.service_manager import ServiceNotifier
from transporter.engine.engine import Engine
from transporter.log.lock import DirectoryLock
from transporter.process_limits import SWITCH_SECONDS

if TYPE_CHECKING:
    from pathlib import Path


class Broken(Events):
    """A report that fails at every status."""

    def show_status(self, _status: dict[str, Any], _doing: str = "") -> None:
        raise RuntimeError("cannot draw")


def test_threads_of_a_run_switch_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has something to do waits for half a millisecond, before anything is started."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("far enough")

    monkeypatch.setattr("transporter.embed.assemble_engine", fail)
    before = sys.getswitchinterval()
    try:
        with pytest.raises(RuntimeError, match="far enough"):
            run_pipeline(make_pipeline(tmp_path, [], out={}), {})
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    finally:
        sys.setswitchinterval(before)


def test_a_report_that_fails_leaves_no_engine_behind(tmp_path: Path) -> None:
    """The engine stops in order and releases its log, so that the process can end."""
    report = Broken()
    pipeline = make_pipeline(tmp_path, ["a 1"], end=False, out={})
    engine = Engine(pipeline, SparklessHost(), report)
    try:
        with pytest.raises(RuntimeError, match="cannot draw"):
            _run_until_stopped(engine, report, _Signals(), ServiceNotifier())
        assert report.named("engine-stopped")
        DirectoryLock(tmp_path / "log").release()
    finally:
        if not report.named("engine-stopped"):
            engine.stop(0)
