"""The launcher of the Spark host: a child process in its own session.

Imports neither pyspark nor py4j, so the engine process stays small and starts
immediately.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from transporter.pipeline.secrets import Secrets, looks_secret
from transporter.spark.class_archive import add_java_options, archive_folder
from transporter.spark.code_shipping import cluster_settings
from transporter.spark.java_runtime import find_java
from transporter.spark.log_file import rotate
from transporter.spark.parent_death import bind_to_parent
from transporter.spark.spark_user import nameless_environment

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.protocol.messages import Ticket
    from transporter.protocol.network import Network

LOG: Final = "spark.log"
SCRATCH: Final = "spark"
_LONG: Final = 8
"""Length of a variable's value at which a match with a secret is hardly chance."""
SAFE_PATH: Final = {"PYTHONSAFEPATH": "1"}
"""Environment of Python processes that import no module from their working directory."""
LOOPBACK: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.authenticate": "true",  # its ports serve jobs, with all settings, to any client
}
"""Settings of a Spark that runs on this host alone. Its ports serve no other user."""


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Options that a Spark host reads from standard input. Secrets go nowhere else."""

    address: Any
    key: str = field(repr=False)
    master: str
    config: dict[str, str]
    scratch: str
    log: str
    frames: bool = False
    archive: str = ""

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})


class SparkLauncher:
    """A launcher of Spark hosts for one pipeline. It finds Java once, when it is made."""

    def __init__(
        self,
        directory: Path,
        cache: Path,
        master: str,
        config: dict[str, str],
        network: Network | None = None,
        *,
        frames: bool = False,
        secrets: Secrets = Secrets(),  # noqa: B008 - frozen
    ) -> None:
        """Keep Spark's scratch files and its log below *directory*, generated files in *cache*.

        With a *network* the master belongs to a cluster, which reaches this host by it. With
        *frames* Spark not only starts workers, but also processes data. No variable that
        holds one of *secrets* is in the environment of a started process.

        Raises:
            HostFailed: no Java 17 or newer can be found.

        """
        self._java = find_java(os.environ, cache)
        self._archive = archive_folder(self._java, cache)
        self._directory, self._master, self._config = directory, master, config
        self._network, self._frames, self._secrets = network, frames, secrets

    @property
    def log(self) -> Path:
        """The log file of Spark and its workers."""
        return self._directory / LOG

    def __call__(self, ticket: Ticket) -> subprocess.Popen[bytes]:
        """Start a host that connects by *ticket*. It ends with the calling thread."""
        scratch = self._directory / SCRATCH
        # An earlier Spark that was killed may have left files behind.
        shutil.rmtree(scratch, ignore_errors=True)
        # It holds payloads, and sockets through which workers receive code.
        scratch.mkdir(mode=0o700, parents=True)
        config = self._config
        if self._network is not None:
            config = cluster_settings(self._network, config, scratch, frames=self._frames)
        options = HostOptions(
            address=ticket.address,
            key=ticket.key.hex(),
            master=self._master,
            config=config,
            scratch=str(scratch),
            log=str(self.log),
            frames=self._frames,
            archive=str(self._archive),
        )
        rotate(self.log)
        with _private_log(self.log) as log:
            process = subprocess.Popen(
                bind_to_parent([sys.executable, "-m", "transporter.spark.host"]),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment(),
                # Ctrl-C in a terminal goes to the engine alone, which then stops us in order.
                start_new_session=True,
            )
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        process.stdin.write(options.to_json().encode() + b"\n")
        process.stdin.flush()
        return process

    def _environment(self) -> dict[str, str]:
        mine = {"JAVA_HOME": str(self._java), "PYSPARK_PYTHON": sys.executable, **SAFE_PATH}
        mine |= nameless_environment(os.environ, str(self._directory / SCRATCH))
        mine |= add_java_options(os.environ | mine, self._archive)
        given = {
            name: value for name, value in os.environ.items() if not self._holds_secret(name, value)
        }
        if self._network is None:
            return {**given, **mine, "SPARK_LOCAL_HOSTNAME": "localhost"}
        # Executors have their own Python, and Spark reads this setting from spark-submit only.
        theirs = self._config.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
        return {**given, **mine, **({"PYSPARK_PYTHON": theirs} if theirs else {})}

    def _holds_secret(self, name: str, value: str) -> bool:
        """Return whether a variable is the source of a secret, which the worker gets from us."""
        known = self._secrets.values
        # A short secret may occur in a path by chance, or a short value in a secret.
        if value in known or (len(value) >= _LONG and any(value in each for each in known)):
            return True
        return looks_secret(name, value) and self._secrets.hide(value) != value


def _private_log(path: Path) -> BinaryIO:
    """Open *path* for appending, private to this user even if it was created readable by others."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "ab")
