"""The product's archive of the classes that Spark loads, for the JVMs of tests.

The suite starts more than a hundred JVMs. A host of the product writes the archive after a minute,
the suite before its first test.

    python -m services.spark_classes        write the archive, unless it is there
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from transporter.embed import cache_directory
from transporter.errors import HostFailed
from transporter.spark import class_archive
from transporter.spark.java_runtime import find_java

if TYPE_CHECKING:
    from pathlib import Path


def options() -> dict[str, str]:
    """Return the variable with which a JVM of any user or home uses the archive, if it is there."""
    try:
        java = _find()
    except HostFailed:
        return {}
    return class_archive.add_java_options(
        os.environ, class_archive.archive_folder(java, cache_directory())
    )


def write() -> None:
    """Write the archive. Without it the tests are slower, so a failure ends nothing."""
    java = _find()
    os.environ |= {"JAVA_HOME": str(java), "PYSPARK_PYTHON": sys.executable}
    folder = class_archive.archive_folder(java, cache_directory())
    if not class_archive.write(folder):
        sys.stdout.write("no archive of Spark's classes was written, so its JVMs start slowly\n")


def _find() -> Path:
    return find_java(os.environ, cache_directory())


if __name__ == "__main__":
    write()
