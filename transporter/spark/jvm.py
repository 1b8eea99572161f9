"""The JVM of Spark's driver: a child that ends with this process, even when it hangs."""

from __future__ import annotations

import os
import shlex
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway

from transporter.errors import HostFailed
from transporter.spark.parent_death import bound_to_parent

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOLD: Final = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_GATEWAY: Final = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
_LOOK: Final = 0.05


def start_jvm(shown: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], Any]:
    """Return a new JVM and py4j's gateway to it; *shown* are settings for its command line.

    As ``launch_gateway`` of pyspark does, which leaves no way to bind the JVM to its parent.
    Call it on the main thread: the JVM ends with the thread that starts it.

    Raises:
        HostFailed: the JVM ended before it could be talked to.

    """
    command = [f"{_find_spark_home()}/bin/spark-submit"]
    for name, value in shown.items():
        command += ["--conf", f"{name}={value}"]
    command += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    with tempfile.TemporaryDirectory(prefix="transporter-") as folder:
        told = Path(folder) / "gateway"
        process = subprocess.Popen(
            bound_to_parent(command),
            # It ends when this is closed.
            stdin=subprocess.PIPE,
            env={**os.environ, "SPARK_CONNECT_MODE": "0", _TOLD: str(told)},
            # A signal to our group must not kill it in the middle of a slice.
            start_new_session=True,
        )
        while not told.exists():
            if (code := process.poll()) is not None:
                raise HostFailed(f"Java ended with code {code} before Spark was up")
            time.sleep(_LOOK)
        return process, _gateway(told.read_bytes())


def _gateway(told: bytes) -> Any:  # noqa: ANN401 - py4j has no types
    """Connect to the JVM that has *told* its port and secret."""
    port, length = struct.unpack_from(">ii", told)
    secret = told[8 : 8 + length].decode()
    os.environ.update(zip(_GATEWAY, (str(port), secret), strict=True))
    try:
        return launch_gateway()
    finally:
        for name in _GATEWAY:
            del os.environ[name]
