"""The environment of a process that starts Spark's JVM for a command."""

from __future__ import annotations

import os
import sys


def spark_environment() -> dict[str, str]:
    """Return the variables of such a process.

    Raises:
        HostFailed: there is no Java.

    """
    from transporter.embed import cache_directory  # noqa: PLC0415 - heavy; `--help` does without
    from transporter.spark.java import find_java  # noqa: PLC0415
    from transporter.spark.launch import SAFE_PATH  # noqa: PLC0415
    from transporter.spark.user import nameless_environment  # noqa: PLC0415

    cache = cache_directory()
    return {
        **os.environ,
        **nameless_environment(os.environ, str(cache)),
        **SAFE_PATH,
        "JAVA_HOME": str(find_java(os.environ, cache)),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_HOSTNAME": "localhost",
    }
