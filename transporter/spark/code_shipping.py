"""Our own code for the executors of a cluster, so that nobody installs it there.

An archive that Spark distributes and unpacks beside each executor, where
``PYTHONPATH`` finds it: as files, for some of them are data, and early enough for
Spark's Python daemon. Executors need Python and our dependencies, nothing of ours.
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
"""Where the archive is unpacked, below an executor's working directory."""
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


def on_a_cluster(
    network: Network, config: dict[str, str], scratch: Path, *, frames: bool = False
) -> dict[str, str]:
    """Return Spark's settings for a cluster that reaches us by *network*; *config* wins.

    With *frames* the driver does more than schedule: slices pass through it. Unless *network* is
    insecure, Spark authenticates and encrypts its connections. Writes the archive into
    *scratch*. What is a list, archives and ``PYTHONPATH``, begins with ours and goes on with
    the user's.

    Raises:
        HostFailed: the archive cannot be written.

    """
    archive = f"{_archive(scratch).as_uri()}#{FOLDER}"
    return {
        "spark.driver.host": network.advertised,
        "spark.driver.bindAddress": network.host,
        **(_WORKING if frames else _SCHEDULING),
        **({} if network.insecure else PROTECTED),
        # A worker that dies is the engine's business: it alone knows when the next may begin.
        "spark.task.maxFailures": "1",
        **config,
        _ARCHIVES: ",".join(filter(None, (archive, config.get(_ARCHIVES)))),
        _PATH: ":".join(filter(None, (FOLDER, config.get(_PATH)))),
    }


def _archive(scratch: Path) -> Path:
    path = scratch / _ARCHIVE
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
            for file, name in _files():
                archive.write(file, name)
            for name, text in _metadata():
                archive.writestr(name, text)
    except OSError as error:
        raise HostFailed(f"{path}: cannot be written for executors: {error.strerror}") from error
    return path


def _files() -> Iterator[tuple[Path, str]]:
    """Yield the files of our packages, and their names in the archive."""
    for package in OUR_PACKAGES:
        found = find_spec(package)
        for place in (found and found.submodule_search_locations) or ():
            for path in sorted(Path(place).rglob("*")):
                if path.is_file() and not any(part in _NEVER for part in path.parts):
                    yield path, str(Path(package) / path.relative_to(place))


def _metadata() -> Iterator[tuple[str, str]]:
    """Yield what makes the short names of adaptors known there: our entry points."""
    try:
        ours = distribution("transporter")
    except PackageNotFoundError as error:
        raise HostFailed(
            "transporter is not installed here, so no adaptor has its name: pip install it"
        ) from error
    for name in _METADATA:
        if (text := ours.read_text(name)) is not None:
            yield f"transporter-{ours.version}.dist-info/{name}", text
