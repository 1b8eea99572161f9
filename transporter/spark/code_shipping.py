"""Our own code for the executors of a cluster, so that it need not be installed there.

Spark distributes an archive and unpacks it beside each executor, on ``PYTHONPATH``. It is
unpacked because some of the files are data, and early enough for Spark's Python daemon.
Executors need Python and our dependencies, but not this package.
"""

from __future__ import annotations

import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from transporter.errors import HostFailed
from transporter.pipeline.adaptor_registry import OUR_PACKAGES
from transporter.pipeline.spark_protection import PROTECTED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.protocol.network import Network

FOLDER: Final = "transporter-code"
"""The folder of the unpacked archive, below an executor's working directory."""
_ARCHIVE: Final = f"{FOLDER}.zip"
_METADATA: Final = ("METADATA", "entry_points.txt")
_NEVER: Final = ("__pycache__", "quickstart", "scaffold")
_SCHEDULING: Final = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
_WORKING: Final = {"spark.driver.memory": "1g"}
_PATH: Final = "spark.executorEnv.PYTHONPATH"
_ARCHIVES: Final = "spark.archives"


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
    archive = f"{_write_archive(scratch).as_uri()}#{FOLDER}"
    return {
        "spark.driver.host": network.advertised,
        "spark.driver.bindAddress": network.host,
        **(_WORKING if frames else _SCHEDULING),
        **({} if network.insecure else PROTECTED),
        # The engine handles a worker that dies: only it can decide when the next may begin.
        "spark.task.maxFailures": "1",
        **config,
        _ARCHIVES: ",".join(filter(None, (archive, config.get(_ARCHIVES)))),
        _PATH: ":".join(filter(None, (FOLDER, config.get(_PATH)))),
    }


def _write_archive(scratch: Path) -> Path:
    path = scratch / _ARCHIVE
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
