"""Artifacts of Maven Central that tests run, from committed lock lists with checksums.

They are kept below ``.cache``, or below the folder that ``TRANSPORTER_TEST_CACHE`` names.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from maven_artifact import Artifact, Downloader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PARALLEL_FETCHES = 8
FETCH_SECONDS = 30.0


class Absent(Exception):
    """A service that is unavailable here, with the reason as its text."""


@dataclass(frozen=True)
class Jar:
    """One line of a lock list."""

    coordinate: str
    sha256: str

    @property
    def path(self) -> str:
        """Its file name in the cache."""
        return "-".join(self.coordinate.split(":")[1:]) + ".jar"

    @property
    def major(self) -> str:
        """The first number of its version."""
        return self.coordinate.split(":")[2].partition(".")[0]


def locked(lock: Path) -> list[Jar]:
    """Return the artifacts in the list *lock*."""
    lines = (line for line in lock.read_text().splitlines() if not line.startswith("#"))
    return [Jar(*line.split()) for line in lines]


def cache_folder() -> Path:
    """Return the folder that keeps the fetched files."""
    named = os.environ.get("TRANSPORTER_TEST_CACHE")
    return Path(named) if named else Path(__file__).parents[3] / ".cache"


def fetch(jars: list[Jar], folder: Path) -> list[Path]:
    """Return the paths of *jars* in *folder*, fetching those that are absent or damaged.

    :raises Absent: when one cannot be fetched, or its checksum is not the locked one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [jar for jar in jars if not _intact(folder / jar.path, jar)]
    with ThreadPoolExecutor(PARALLEL_FETCHES, "fetch-jar") as pool:
        tasks = [pool.submit(_fetch_one, jar, folder) for jar in missing]
        try:
            for done, task in enumerate(tasks, start=1):
                task.result()
                _progress(folder.name, done, len(tasks))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [folder / jar.path for jar in jars]


def _progress(of: str, done: int, total: int) -> None:
    if sys.stderr.isatty() or done == total:
        end = "\n" if done == total else "\r"
        print(f"{of}: fetched {done} of {total} artifacts", end=end, file=sys.stderr)  # noqa: T201 - progress


def _intact(path: Path, jar: Jar) -> bool:
    return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == jar.sha256


def _fetch_one(jar: Jar, folder: Path) -> None:
    downloader = Downloader()
    url = downloader.resolver.uri_for_artifact(Artifact(*jar.coordinate.split(":")))
    try:
        body = downloader.requestor.request(
            url, None, lambda response: response.content, timeout=FETCH_SECONDS
        )
    except Exception as error:
        raise Absent(f"cannot fetch {jar.coordinate} ({type(error).__name__})") from error
    found = hashlib.sha256(body).hexdigest()
    if found != jar.sha256:
        raise Absent(f"{jar.coordinate} has sha256 {found}, the lock list has {jar.sha256}")
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        file.write(body)
    Path(file.name).replace(folder / jar.path)


def fetch_ahead(arguments: Sequence[str], service: str, fetch_all: Callable[[], object]) -> int:
    """Run ``--fetch`` of a service's module. Return the exit code, which is 1 in CI without it."""
    if list(arguments) != ["--fetch"]:
        print("the only argument is --fetch", file=sys.stderr)  # noqa: T201 - a command
        return 2
    try:
        fetch_all()
    except Absent as error:
        print(f"no {service} for the tests: {error}", file=sys.stderr)  # noqa: T201 - a command
        return 1 if os.environ.get("CI") else 0
    return 0
