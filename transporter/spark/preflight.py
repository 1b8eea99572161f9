"""Checks of the conditions for starting Spark, without starting it."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Final

from transporter.adaptor import Finding
from transporter.errors import HostFailed
from transporter.pipeline.address import split_address
from transporter.spark.java_runtime import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_STANDALONE: Final = "spark://"
_SECONDS: Final = 5.0


def probe_spark(master: str, cache: Path, *, local: bool) -> Iterator[Finding]:
    """Yield findings about the Java for Spark and, for a cluster, about its *master*.

    A launcher for the Java of a wheel is written below *cache*.
    """
    try:
        yield Finding(f"Java at {find_java(os.environ, cache)}")
    except HostFailed as error:
        yield Finding(str(error), "problem")
    if local:
        return
    if not master.startswith(_STANDALONE):
        yield Finding(f"{master}: not checked; Spark connects when the engine starts", "warning")
        return
    for place in master.removeprefix(_STANDALONE).split(","):
        yield _probe_master(place)


def _probe_master(place: str) -> Finding:
    try:
        with socket.create_connection(split_address(place), _SECONDS):
            return Finding(f"the master at {place} takes connections")
    except (OSError, ValueError) as error:
        return Finding(f"the master at {place} does not answer: {error}", "problem")
