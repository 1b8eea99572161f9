"""The launcher of the Spark host, with the settings and the code for executors of a cluster.

The host is a child process in its own session. This module imports neither pyspark nor
py4j, so the engine process stays small and starts immediately.

Our own code need not be installed on a cluster. Spark distributes an archive and unpacks it
beside each executor, on ``PYTHONPATH``. It is unpacked because some of the files are data,
and early enough for Spark's Python daemon. Executors need Python and our dependencies, but
not this package.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from transporter.errors import HostFailed
from transporter.pipeline.adaptor_registry import OUR_PACKAGES
from transporter.pipeline.secrets import Secrets, looks_secret
from transporter.pipeline.spark_protection import PROTECTED
from transporter.spark.class_archive import add_java_options, archive_folder
from transporter.spark.java_runtime import find_java
from transporter.spark.log_file import rotate
from transporter.spark.parent_death import bind_to_parent
from transporter.spark.spark_user import nameless_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

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
CODE_FOLDER: Final = "transporter-code"
"""The folder of the unpacked archive, below an executor's working directory."""
_CODE_ARCHIVE: Final = f"{CODE_FOLDER}.zip"
_METADATA: Final = ("METADATA", "entry_points.txt")
_NEVER: Final = ("__pycache__", "quickstart", "scaffold")
_SCHEDULING: Final = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
_WORKING: Final = {"spark.driver.memory": "1g"}
_PATH: Final = "spark.executorEnv.PYTHONPATH"
_ARCHIVES: Final = "spark.archives"


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


def cluster_settings(
    network: Network, config: dict[str, str], scratch: Path, *, frames: bool = False
) -> dict[str, str]:
    """Return Spark's settings for a cluster that reaches us by *network*.

    *config* takes precedence. With *frames* the driver does more than schedule: slices pass
    through it. Unless *network* is insecure, Spark authenticates and encrypts its connections.
    The archive is written into *scratch*. The lists, archives and ``PYTHONPATH``, hold our
    values first and then the user's.

    Raises:
        HostFailed: the archive cannot be written.

    """
    archive = f"{_write_code_archive(scratch).as_uri()}#{CODE_FOLDER}"
    return {
        "spark.driver.host": network.advertised,
        "spark.driver.bindAddress": network.host,
        **(_WORKING if frames else _SCHEDULING),
        **({} if network.insecure else PROTECTED),
        # The engine handles a worker that dies: only it can decide when the next may begin.
        "spark.task.maxFailures": "1",
        **config,
        _ARCHIVES: ",".join(filter(None, (archive, config.get(_ARCHIVES)))),
        _PATH: ":".join(filter(None, (CODE_FOLDER, config.get(_PATH)))),
    }


def _write_code_archive(scratch: Path) -> Path:
    path = scratch / _CODE_ARCHIVE
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
            for file, name in _package_files():
                archive.write(file, name)
            for name, text in _metadata():
                archive.writestr(name, text)
    except OSError as error:
        raise HostFailed(f"{path}: cannot be written for executors: {error.strerror}") from error
    return path


def _package_files() -> Iterator[tuple[Path, str]]:
    """Yield the files of our packages, and their names in the archive."""
    for package in OUR_PACKAGES:
        found = find_spec(package)
        for place in (found and found.submodule_search_locations) or ():
            for path in sorted(Path(place).rglob("*")):
                if path.is_file() and not any(part in _NEVER for part in path.parts):
                    yield path, str(Path(package) / path.relative_to(place))


def _metadata() -> Iterator[tuple[str, str]]:
    """Yield our entry points, which define the short names of adaptors on the executors."""
    try:
        ours = distribution("transporter-engine")
    except PackageNotFoundError as error:
        raise HostFailed(
            "transporter is not installed on this host, so adaptors have no short names: "
            "install it with pip"
        ) from error
    for name in _METADATA:
        if (text := ours.read_text(name)) is not None:
            yield f"transporter-{ours.version}.dist-info/{name}", text
