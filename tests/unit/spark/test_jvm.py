"""Tests of the driver's JVM: it has every setting, and its command line has none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from transporter.embed import cache_directory
from transporter.spark import jvm as module
from transporter.spark.java_runtime import find_java
from transporter.spark.jvm import start_jvm

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CANARY = "canary-17"
SETTINGS = {
    "spark.master": "local",
    "spark.driver.memory": "512m",
    "spark.hadoop.location": f" https://x/?sig={CANARY}:# \\ \t\n!ü\U0001f511 =",
    "spark.odd key:=": CANARY,
    "spark.driver.defaultJavaOptions": f"-Dfirst={CANARY}",
    "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 '-Dsecond={CANARY} \"q\" \\ #'",
}


@pytest.mark.spark
def test_no_setting_is_on_a_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings and Java options reach Java unchanged, and the files are removed."""
    monkeypatch.setenv("JAVA_HOME", str(find_java(os.environ, cache_directory())))
    scratch = tmp_path / "with a space"
    scratch.mkdir()
    modes: list[int] = []
    real = module._settings_file

    def observed(folder: Path, settings: Mapping[str, str]) -> Path:
        path = real(folder, settings)
        modes.extend(each.stat().st_mode & 0o777 for each in (folder, *folder.iterdir()))
        return path

    monkeypatch.setattr(module, "_settings_file", observed)
    gateway: Any = start_jvm(SETTINGS, scratch)
    try:
        java = psutil.Process(gateway.proc.pid)
        started = java.cmdline()
        read = gateway.jvm.System.getProperty
        shown = {name: read(name) for name in SETTINGS}
        options = [read(name) for name in ("first", "second")]
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(20)
    assert "-Xmx512m" in started
    assert CANARY not in str(started)
    for name in ("spark.hadoop.location", "spark.odd key:="):
        assert (shown[name] or "").strip() == SETTINGS[name].strip(), "Spark cuts the ends itself"
    assert options == [CANARY, f'{CANARY} "q" \\ #']
    assert modes == [0o700, 0o600, 0o600, 0o600]
    assert list(scratch.iterdir()) == []
