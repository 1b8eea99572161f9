"""An archive of the classes that Spark loads, from which its JVM starts a second sooner.

Java parses and verifies some ten thousand classes before Spark is up. From an archive it maps them
as they were (class-data sharing, JEP 310 and 350). An archive fits one Java and one installation
of Spark, so it is found by both, below the folder for generated files. A host that has run for a
minute writes it, by a process of its own with the lowest priority. A JVM that cannot use an
archive starts without it.

``python -m transporter.spark.class_archive FOLDER`` is that process.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from transporter.process_limits import available_memory, end_first_without_memory
from transporter.spark.parent_death import bind_to_parent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LAUNCHER_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""The variable that Spark's launcher puts on the command line of the JVM."""
_PREFIX: Final = "spark-classes-"
_BASE: Final = "java"
_CLASSES: Final = "spark"
_SUFFIX: Final = ".jsa"
_JARS: Final = "jars"
_SCRATCH: Final = "writing-"
_PART: Final = 1 << 20
_QUIET: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
"""A JVM whose class path differs warns that it does without the archive."""
_DELAY: Final = 60.0
"""Seconds after its start at which a host writes the archive. One that ends sooner is a test."""
_DISK: Final = 1 << 30
_MEMORY: Final = 1 << 30
"""Bytes that have to be free, so that the writing displaces nothing."""
_NONE: Final[Mapping[str, str]] = {}


def archive_folder(java_home: Path, cache: Path) -> Path:
    """Return the folder below *cache* for the archive of this Java and this Spark."""
    paths = (java_home / "bin" / "java").resolve(), _find_jars()
    parts = [(path, _changed_at(path)) for path in paths]
    return cache / f"{_PREFIX}{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"


def _changed_at(path: Path | None) -> int | None:
    """Return the time of *path* in ns, ``None`` without one: a start reports what is missing."""
    with suppress(OSError):
        return None if path is None else path.stat().st_mtime_ns
    return None


def java_options(folder: Path) -> str:
    """Return the options of a JVM that starts from the archive in *folder*, none without one.

    Its bytes are compared with its checksum, because a damaged archive crashes the JVM.
    """
    archives = [_find_whole(folder, name) for name in (_BASE, _CLASSES)]
    if archives[-1] is None or ":" in str(folder):
        return ""  # A colon separates archives.
    names = ":".join(str(each) for each in archives if each is not None)
    return shlex.join([f"-XX:SharedArchiveFile={names}", *_QUIET])


def add_java_options(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the variable with which a JVM uses the archive. What the user gave is kept."""
    given = environ.get(LAUNCHER_OPTIONS, "")
    # A process that has it from its parent does not read the archive again.
    options = "" if str(folder) in given else java_options(folder)
    return {LAUNCHER_OPTIONS: f"{options} {given}".rstrip()} if options else {}


def write_later(folder: Path) -> None:
    """Write the archive into *folder* in a minute, unless it is there. Ends with this process."""
    if _find(folder, _CLASSES) is not None:
        return
    command = [sys.executable, "-m", __name__, str(folder)]

    def wait_and_write() -> None:
        time.sleep(_DELAY)
        # The process ends with the thread that starts it.
        subprocess.run(bind_to_parent(command), stdin=subprocess.DEVNULL, check=False)

    threading.Thread(target=wait_and_write, name="class-archive", daemon=True).start()


def write(folder: Path) -> bool:
    """Write the archive into *folder*, unless it is there, and remove those that fit no Spark.

    Returns whether it is there. It is not if the disk or the memory has no room for it, or if
    this Java shares no classes.
    """
    if _find(folder, _CLASSES) is not None:
        return True
    jars = _find_jars()
    if jars is None or not _has_room(folder.parent):
        return False
    _remove_abandoned(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        (folder / _JARS).symlink_to(jars)
    with _only_writer(folder) as is_only:
        return is_only and _write_alone(folder)


@contextmanager
def _only_writer(folder: Path) -> Iterator[bool]:
    """Yield whether no other process writes into *folder* during the block."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)


def _write_alone(folder: Path) -> bool:
    for abandoned in folder.glob(f"{_SCRATCH}*"):
        # A host that ended took the process that wrote with it.
        shutil.rmtree(abandoned, ignore_errors=True)
    base = _base_option(folder)
    if base is None:
        return False
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=folder) as scratch:
        made = Path(scratch) / _CLASSES
        given = os.environ.get(LAUNCHER_OPTIONS, "")
        options = shlex.join([*base, f"-XX:ArchiveClassesAtExit={made}", *_QUIET])
        _runs(
            [sys.executable, "-m", "transporter.spark.load_classes", scratch],
            {LAUNCHER_OPTIONS: f"{options} {given}", "SPARK_LOCAL_HOSTNAME": "localhost"},
        )
        return _put_in_place(made) is not None


def _base_option(folder: Path) -> list[str] | None:
    """Return the option for Java's own classes, ``None`` if it cannot share them.

    A Java that was linked for a wheel comes without an archive of them.
    """
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    if _runs([java, "-Xshare:on", "-version"]):
        return []
    base = _find_whole(folder, _BASE)
    if base is None:
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=folder) as scratch:
            made = Path(scratch) / _BASE
            _runs([java, "-Xshare:dump", f"-XX:SharedArchiveFile={made}"])
            base = _put_in_place(made)
    return None if base is None else [f"-XX:SharedArchiveFile={base}"]


def _runs(command: list[Any], variables: Mapping[str, str] = _NONE) -> bool:
    """Run *command*, which ends with this thread, and return whether it succeeded."""
    null = subprocess.DEVNULL
    done = subprocess.run(
        bind_to_parent(list(map(str, command))),
        env={**os.environ, **variables},
        stdin=null,
        stdout=null,
        stderr=null,
        check=False,
    )
    return done.returncode == 0


def _put_in_place(made: Path) -> Path | None:
    """Name a file that is complete after its checksum, in the folder above, and return its path."""
    try:
        with made.open("rb") as file:
            os.fsync(file.fileno())
        return made.replace(made.parent.parent / f"{made.name}-{_checksum(made)}{_SUFFIX}")
    except OSError:
        return None


def _find(folder: Path, name: str) -> Path | None:
    return next(folder.glob(f"{name}-*{_SUFFIX}"), None)


def _find_whole(folder: Path, name: str) -> Path | None:
    """Return the archive of that *name* if it is as it was written, else remove all."""
    if (archive := _find(folder, name)) is None:
        return None
    with suppress(OSError):
        if archive.stem == f"{name}-{_checksum(archive)}":
            return archive
        discard(folder)
    return None


def _checksum(archive: Path) -> str:
    """Return the CRC-32 of a file, in hexadecimal."""
    value = 0
    with archive.open("rb") as file:
        while part := file.read(_PART):
            value = zlib.crc32(part, value)
    return f"{value:08x}"


def _remove_abandoned(mine: Path) -> None:
    """Remove the archives beside *mine* whose Spark is gone."""
    for folder in mine.parent.glob(f"{_PREFIX}*"):
        if folder != mine and not (folder / _JARS).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _find_jars() -> Path | None:
    """Return the folder of Spark's jars, without an import of pyspark."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home) / _JARS
    found = find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / _JARS


def _has_room(cache: Path) -> bool:
    cache.mkdir(parents=True, exist_ok=True)
    memory = available_memory()
    return shutil.disk_usage(cache).free >= _DISK and (memory is None or memory >= _MEMORY)


def discard(folder: Path) -> None:
    """Remove the archives in *folder*: a JVM has not started, or a file is damaged."""
    for archive in folder.glob(f"*{_SUFFIX}"):
        archive.unlink(missing_ok=True)


def main() -> None:
    """Write the archive into the folder of the command line, and disturb no other process."""
    os.nice(19)
    end_first_without_memory()
    folder = Path(sys.argv[1])
    try:
        is_there = write(folder)
    except OSError as error:
        is_there, problem = False, str(error)
    else:
        problem = "no room, or this Java shares no classes"
    text = f"later starts load Spark's classes from {folder}" if is_there else problem
    sys.stdout.write(f"class archive: {text}\n")


if __name__ == "__main__":
    main()
