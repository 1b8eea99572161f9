"""Processes that start Spark for a command."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from transporter.cli.entry_output import note

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.dry_run.on_spark import DryRunSpark
    from transporter.pipeline.config import SparkConfig
    from transporter.pipeline.secrets import Secrets
    from transporter.spark.launch import SparkLauncher

_SHORT_LIVED: Final = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1"}
"""A process that lives for seconds is not worth optimising."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def spark_environment() -> dict[str, str]:
    """Return the environment of a process that starts Spark.

    Raises:
        HostFailed: there is no Java.

    """
    from transporter.embed import cache_directory  # noqa: PLC0415 - heavy; `--help` does without
    from transporter.spark.class_archive import add_java_options, archive_folder  # noqa: PLC0415
    from transporter.spark.java_runtime import find_java  # noqa: PLC0415
    from transporter.spark.launch import SAFE_PATH  # noqa: PLC0415
    from transporter.spark.spark_user import nameless_environment  # noqa: PLC0415

    cache = cache_directory()
    java = find_java(os.environ, cache)
    environ = {**os.environ, **nameless_environment(os.environ, str(cache))}
    return {
        **environ,
        **add_java_options(environ, archive_folder(java, cache)),
        **SAFE_PATH,
        "JAVA_HOME": str(java),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_HOSTNAME": "localhost",
    }


@contextmanager
def trial_spark() -> Iterator[DryRunSpark]:
    """Yield a Spark for ``sql`` steps that starts on first use and ends with the block.

    A signal ends the block, but Spark still ends in order.
    """
    from transporter.dry_run.on_spark import DryRunSpark  # noqa: PLC0415 - imports pyarrow

    spark = DryRunSpark(_create_launcher, lambda: note("starting Spark for sql steps …"))
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    signal.signal(signal.SIGTERM, _exit_on_sigterm)
    try:
        yield spark
    finally:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        try:
            spark.close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _exit_on_sigterm(number: int, _: object) -> None:
    sys.exit(128 + number)


def _create_launcher(folder: Path, spark: SparkConfig, secrets: Secrets) -> SparkLauncher:
    """Return a launcher of Spark on this host with the settings of a pipeline.

    A cluster's master is not used, because the ports that it needs are open to others.
    """
    from transporter.embed import cache_directory  # noqa: PLC0415 - heavy; `--help` does without
    from transporter.spark.launch import LOOPBACK, SparkLauncher  # noqa: PLC0415

    config = _SHORT_LIVED | spark.config | ({} if spark.local else LOOPBACK)
    master = spark.master if spark.local else "local"
    return SparkLauncher(folder, cache_directory(), master, config, frames=True, secrets=secrets)
