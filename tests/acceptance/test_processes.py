"""The processes below an engine: none outlives it, in any state."""

from __future__ import annotations

import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from acceptance_tools import await_true, gone, running

from transporter.spark.launch import SCRATCH

if TYPE_CHECKING:
    from acceptance_tools import Running

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
_DRIVER, _LAUNCHER = "org.apache.spark.deploy.SparkSubmit", "org.apache.spark.launcher.Main"
PIPELINE = """
log: {dir: log}
observe: {listen: "off"}
shutdown_timeout: 5s
readers: [{name: lines, adaptor: demo, rate: 5}]
routes: [{name: copy, writer: {adaptor: file, path: out.jsonl}}]
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """Return a pipeline that never ends."""
    (tmp_path / "p.yaml").write_text(PIPELINE)
    return tmp_path / "p.yaml"


@pytest.mark.exhaustive
@pytest.mark.parametrize("length", [61, 62, 64])
def test_workers_start_whatever_the_length_of_the_log_directory(length: int) -> None:
    """Spark refuses long folders for its sockets, so from its limit on they are elsewhere."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        scratch = folder / "log" / SCRATCH
        folder /= "d" * (length - len(str(scratch)) - 1)
        folder.mkdir()
        assert len(str(folder / "log" / SCRATCH)) == length
        (folder / "p.yaml").write_text(PIPELINE)
        with running(folder / "p.yaml") as engine:
            engine.await_event("worker-connected", timeout=60)
            assert engine.stop() == 0


@pytest.mark.parametrize(
    "hanging",
    [*(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("host", "worker")), "jvm"],
)
def test_what_hangs_ends_with_an_engine_that_is_killed(pipeline: Path, hanging: str) -> None:
    """A host, a JVM or a worker that is suspended is gone within seconds."""
    with running(pipeline) as engine:
        engine.await_event("worker-connected")
        for process in engine.descendants(hanging):
            process.suspend()
        left = engine.kill()
        assert len(left) >= 4
        assert gone(left) == []


def test_a_jvm_that_hangs_while_it_starts_ends_with_its_engine(pipeline: Path) -> None:
    """No process is left if the engine is killed before Spark is up."""
    with running(pipeline) as engine:
        await_true(lambda: bool(_gateways(engine)), 30, "a JVM", pause=0.01)
        _gateways(engine)[0].suspend()
        assert gone(engine.kill()) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("hanging", ["host", "jvm"])
def test_what_hangs_is_ended_by_a_clean_stop(pipeline: Path, hanging: str) -> None:
    """A stop has a deadline for Spark, delivers all the same and exits with 0."""
    with running(pipeline) as engine:
        engine.await_event("worker-connected")
        left = engine.descendants()
        for process in engine.descendants(hanging):
            process.suspend()
        assert engine.stop() == 0
        assert gone(left) == []


@pytest.mark.exhaustive
def test_spark_s_log_is_kept_short_while_it_runs(pipeline: Path) -> None:
    """The log is cut within seconds, and its end is kept beside it."""
    with running(pipeline) as engine:
        engine.await_event("spark-ready")
        log = pipeline.parent / "log" / "spark.log"
        with log.open("ab") as file:
            file.write(b"x" * (12 << 20))
        await_true(lambda: log.stat().st_size < 1 << 20, 30, "a shorter log")
        assert log.with_name("spark.log.1").stat().st_size == 10 << 20
        assert engine.stop() == 0


@pytest.mark.exhaustive
def test_a_jvm_that_dies_is_replaced_and_the_cause_is_reported(pipeline: Path) -> None:
    """The event names the cause of the host's end, and the next worker continues."""
    with running(pipeline) as engine:
        engine.await_event("worker-connected")
        (jvm,) = engine.descendants("jvm")
        jvm.send_signal(signal.SIGKILL)
        lost = engine.await_event("spark-host-lost")
        assert lost["problem"] == "Spark's JVM has ended with code -9"
        await_true(
            lambda: sum(each["event"] == "worker-connected" for each in engine.events) > 1,
            60,
            "another worker",
        )
        assert engine.stop() == 0


def _gateways(engine: Running) -> list[psutil.Process]:
    """Return the JVM that is to become Spark's driver, but not those that only launch it."""
    found = []
    for each in engine.descendants("jvm"):
        with suppress(psutil.NoSuchProcess):  # the launcher is about to end
            line = each.cmdline()
            found += [each] if _DRIVER in line and _LAUNCHER not in line else []
    return found
