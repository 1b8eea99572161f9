"""Tests of the launch of the Spark host: its environment, and our code for a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from transporter.pipeline.secrets import Secrets
from transporter.pipeline.spark_protection import PROTECTED
from transporter.protocol.network import Network
from transporter.spark.host import configuration
from transporter.spark.launch import CODE_FOLDER, SparkLauncher, cluster_settings
from transporter.spark.worker_task import has_ended

NETWORK = Network("10.0.0.7", 0, "engine.example")
MASTER = "spark://10.0.0.1:7077"


@pytest.mark.parametrize(
    ("name", "value", "passed"),
    [
        ("DB_PASSWORD", "tulip", False),
        ("TOKEN", "abcdefgh", False),
        ("DSN", "postgresql://u:tulip@h/d", False),
        ("TULIPS", "/opt/tulip/bin", True),
        ("SHORT", "cdef", True),
        ("EMPTY", "", True),
        ("OTHER_PASSWORD", "rose-garden", True),
    ],
)
def test_variables_with_secrets_stay_in_the_engine(
    name: str, value: str, passed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables that hold a secret are not in the environment of the JVM or of a worker."""
    monkeypatch.setenv(name, value)
    secrets = Secrets.of(["tulip", "Bearer abcdefgh"])
    launcher = SparkLauncher(tmp_path, tmp_path, "local", {}, secrets=secrets)
    assert (name in launcher._environment()) is passed


def test_the_archive_holds_all_that_a_worker_imports(tmp_path: Path) -> None:
    """A Python without our checkout imports a worker from it, and finds adaptors by name."""
    cluster_settings(NETWORK, {}, tmp_path)
    code = tmp_path / "code"
    with zipfile.ZipFile(tmp_path / f"{CODE_FOLDER}.zip") as archive:
        archive.extractall(code)
    script = (
        "import transporter.worker.worker, transporter.pipeline.steps\n"
        "from pathlib import Path\n"
        "from transporter.pipeline.adaptor_registry import find_writer\n"
        "print(transporter.__file__, find_writer('file', Path('.')).__module__)\n"
    )
    # Without site there are no links to a checkout, and without our code no entry points.
    libraries = [each for each in sys.path if each.endswith("site-packages")]
    shown = subprocess.run(
        [sys.executable, "-S", "-c", script],
        env={**os.environ, "PYTHONPATH": ":".join([str(code), *libraries])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    home, module = shown.stdout.split()
    assert Path(home) == code / "transporter" / "__init__.py"
    assert module == "transporter_adaptors.file.writer"
    assert list(code.rglob("prelude.star")), "data files go along"
    assert list(code.glob("transporter-*.dist-info/entry_points.txt"))


def test_executors_find_the_code_before_anything_of_the_user_s(tmp_path: Path) -> None:
    """Lists hold our values before the user's, so that the workers start."""
    theirs = {"spark.archives": "hdfs:///x.zip#x", "spark.executorEnv.PYTHONPATH": "/opt/lib"}
    found = cluster_settings(NETWORK, theirs, tmp_path)
    ours, their = found["spark.archives"].split(",")
    assert ours == f"{(tmp_path / f'{CODE_FOLDER}.zip').as_uri()}#{CODE_FOLDER}"
    assert their == "hdfs:///x.zip#x"
    assert found["spark.executorEnv.PYTHONPATH"] == f"{CODE_FOLDER}:/opt/lib"


def test_a_setting_of_the_user_s_wins(tmp_path: Path) -> None:
    """Settings in the pipeline file override ours."""
    config = {"spark.driver.memory": "2g", "spark.task.maxFailures": "3", "spark.x": "y"}
    found = configuration(
        MASTER, cluster_settings(NETWORK, config, tmp_path), str(tmp_path), str(tmp_path)
    )
    assert config.items() <= found.items()
    assert found["spark.master"] == MASTER
    assert found["spark.driver.host"] == "engine.example"
    assert found["spark.driver.bindAddress"] == "10.0.0.7"


def test_spark_s_own_connections_are_protected_unless_they_need_not_be(tmp_path: Path) -> None:
    """Authentication and encryption are set by default on a cluster, unless it is insecure."""
    assert PROTECTED.items() <= cluster_settings(NETWORK, {}, tmp_path).items()
    insecure = cluster_settings(replace(NETWORK, insecure=True), {}, tmp_path)
    assert not PROTECTED.keys() & insecure.keys()


@pytest.mark.parametrize(
    ("config", "environ", "python"),
    [
        ({}, {}, sys.executable),
        ({}, {"PYSPARK_PYTHON": "/opt/python"}, "/opt/python"),
        ({"spark.pyspark.python": "/x/python"}, {"PYSPARK_PYTHON": "/opt/python"}, "/x/python"),
    ],
)
def test_executors_have_the_python_that_the_user_names(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, str],
    environ: dict[str, str],
    python: str,
) -> None:
    """Executors use the user's Python, or else the path of the engine's own."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    launcher = SparkLauncher(tmp_path, tmp_path, MASTER, config, NETWORK)
    assert launcher._environment()["PYSPARK_PYTHON"] == python


@pytest.mark.parametrize(
    ("problem", "ended"),
    [
        ("Job aborted … org.apache.spark.api.python.PythonException: Traceback …", True),
        ("Job aborted … SparkException: Python worker exited unexpectedly (crashed)", True),
        ("Job aborted … ExecutorLostFailure (executor 0 exited …): Command exited with 137", False),
        ("ExecutorLostFailure … Python worker exited unexpectedly", False),
        ("PythonException … HostFailed: Spark repeats this worker; the engine", False),
        ("Job 3 cancelled because SparkContext was shut down", False),
    ],
)
def test_only_what_spark_has_seen_end_has_ended(problem: str, ended: bool) -> None:
    """On an executor that is lost, or was only stopped, the worker may still run."""
    assert has_ended(problem) is ended
