"""The JVM of Spark's driver: a child that ends with this process, even when it hangs."""

from __future__ import annotations

import os
import shlex
import string
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway

from transporter.errors import HostFailed
from transporter.spark.parent_death import bind_to_parent

if TYPE_CHECKING:
    from collections.abc import Mapping

_INFO_PATH: Final = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_GATEWAY: Final = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
_LOOK: Final = 0.05
_JAVA_OPTIONS: Final = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
_IN_QUOTES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r"})
_PLAIN: Final = frozenset(f"{string.ascii_letters}{string.digits}./_-,@")
"""Characters that need no escape in a properties file."""


def start_jvm(settings: Mapping[str, str], scratch: Path | None = None) -> Any:  # noqa: ANN401 - py4j has no types
    """Start a JVM with Spark's *settings*, and return its py4j gateway with the JVM as ``proc``.

    It replaces ``launch_gateway`` of pyspark, which cannot bind the JVM to its parent. That
    also puts settings on a command line, which every user can read (Invariant 20). Here they
    lie in files that only this user can open, in *scratch* or the folder for temporary files,
    until the JVM has read them. Call it on the main thread, because the JVM ends with the
    thread that starts it.

    Raises:
        HostFailed: the JVM ended before its gateway was up.

    """
    with tempfile.TemporaryDirectory(prefix="transporter-", dir=scratch) as name:
        folder = Path(name)
        info = folder / "gateway"
        process = subprocess.Popen(
            bind_to_parent(
                [
                    f"{_find_spark_home()}/bin/spark-submit",
                    "--properties-file",
                    str(_settings_file(folder, settings)),
                    # The defaults of the user's installation apply, as without our file.
                    "--load-spark-defaults",
                    *shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")),
                ]
            ),
            # The JVM ends when this is closed.
            stdin=subprocess.PIPE,
            env={**os.environ, "SPARK_CONNECT_MODE": "0", _INFO_PATH: str(info)},
            # A signal to our group must not kill it in the middle of a slice.
            start_new_session=True,
        )
        while not info.exists():
            if (code := process.poll()) is not None:
                raise HostFailed(f"Java ended with code {code} before Spark was up")
            time.sleep(_LOOK)
        gateway = _open_gateway(info.read_bytes())
        gateway.proc = process
        return gateway


def _settings_file(folder: Path, settings: Mapping[str, str]) -> Path:
    """Write *settings*, and the options of the JVM beside them, into *folder*."""
    written = dict(settings)
    for number, name in enumerate(_JAVA_OPTIONS):
        if options := shlex.split(settings.get(name, "")):
            # Spark's launcher copies these to the command line. Java can read them from a file.
            path = _private_file(
                folder / f"java-{number}", "\n".join(map(_quote_argument, options))
            )
            written[name] = f'"@{path}"'
    lines = (
        f"{_quote_property(name)}={_quote_property(value)}\n" for name, value in written.items()
    )
    return _private_file(folder / "spark.properties", "".join(lines))


def _private_file(path: Path, text: str) -> Path:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    return path


def _quote_argument(option: str) -> str:
    """Return *option* as written in a Java argument file."""
    return f'"{option.translate(_IN_QUOTES)}"'


def _quote_property(text: str) -> str:
    """Return a name or value as written in a Java properties file."""
    utf16 = text.encode("utf-16-be")
    units = (int.from_bytes(utf16[at : at + 2]) for at in range(0, len(utf16), 2))
    return "".join(chr(each) if chr(each) in _PLAIN else f"\\u{each:04x}" for each in units)


def _open_gateway(info: bytes) -> Any:  # noqa: ANN401 - py4j has no types
    """Connect to the JVM that has reported its port and secret as *info*."""
    port, length = struct.unpack_from(">ii", info)
    secret = info[8 : 8 + length].decode()
    os.environ.update(zip(_GATEWAY, (str(port), secret), strict=True))
    try:
        return launch_gateway()
    finally:
        for name in _GATEWAY:
            del os.environ[name]
