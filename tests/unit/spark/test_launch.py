"""Tests of the environment of the Spark host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from transporter.pipeline.secrets import Secrets
from transporter.spark.launch import SparkLauncher

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("name", "value", "passed"),
    [
        ("DB_PASSWORD", "tulip", False),
        ("TOKEN", "abcdefgh", False),
        ("DSN", "postgresql://u:tulip@h/d", False),
        ("TULIPS", "/opt/tulip/bin", True),
        ("SHORT", "cdef", True),
        ("EMPTY", "", True),
        ("OTHER_PASSWORD", "rose-garden", True),
    ],
)
def test_variables_with_secrets_stay_in_the_engine(
    name: str, value: str, passed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables that hold a secret are not in the environment of the JVM or of a worker."""
    monkeypatch.setenv(name, value)
    secrets = Secrets.of(["tulip", "Bearer abcdefgh"])
    launcher = SparkLauncher(tmp_path, tmp_path, "local", {}, secrets=secrets)
    assert (name in launcher._environment()) is passed
