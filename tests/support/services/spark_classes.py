"""Archive of the classes that Spark loads, from which the JVMs of tests start in half the time.

The suite starts more than a hundred JVMs, and each would parse and verify the same classes. Java's
class-data sharing keeps them in a file that a JVM maps. That file fits one Java and one class path,
so it lies in the environment that holds Spark.

    python -m services.spark_classes        write the archive, unless it is there
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from transporter.embed import cache_directory
from transporter.errors import HostFailed
from transporter.spark.java_runtime import find_java

VARIABLE: Final = "SPARK_SUBMIT_OPTS"
"""Spark's launcher adds these options to those of the JVM."""


def options() -> str:
    """Return the options with which a JVM uses the archive, or "" if there is none."""
    try:
        archive = _path(find_java(os.environ, cache_directory()))
    except HostFailed:
        return ""
    # A JVM that cannot use it starts without, and its warning must not reach a test's output.
    return f"-XX:SharedArchiveFile={archive} -Xlog:disable" if archive.exists() else ""


def write() -> None:
    """Let a JVM write the archive. Without it the tests are slower, so a failure ends nothing."""
    java = find_java(os.environ, cache_directory())
    archive = _path(java)
    if archive.exists():
        return
    sys.stdout.write("archiving the classes of Spark for the tests (once)\n")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(dir=sys.prefix) as folder:
        new = Path(folder) / archive.name
        environ = {
            "JAVA_HOME": str(java),
            "PYSPARK_PYTHON": sys.executable,
            VARIABLE: f"-XX:ArchiveClassesAtExit={new} -Xlog:disable",
        }
        subprocess.run(
            [sys.executable, "-m", "services.spark_classes", folder],
            env=os.environ | environ,
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if new.exists():
            new.replace(archive)
        else:
            sys.stdout.write("this Java shares no classes, so its JVMs start slowly\n")


def _path(java_home: Path) -> Path:
    key = hashlib.sha256(bytes((java_home / "bin/java").resolve())).hexdigest()[:12]
    return Path(sys.prefix) / f"spark-classes-{key}.jsa"


def _load_classes(folder: str) -> None:
    """Run a job, so that the JVM loads what most pipelines need, and end the JVM in order."""
    # The tests import this module for its options alone, and pyspark takes a second.
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415

    from transporter.spark.host import configuration  # noqa: PLC0415
    from transporter.spark.jvm import start_jvm  # noqa: PLC0415

    settings = configuration("local", {}, folder, folder)
    gateway = start_jvm(settings)
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    context = SparkContext(conf=conf, gateway=gateway)
    context.parallelize(range(10), 2).map(str).collect()
    context.stop()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _load_classes(sys.argv[1])
    else:
        write()
