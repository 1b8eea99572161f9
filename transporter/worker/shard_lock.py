"""The lock of a shard: one worker delivers for it at a time."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from transporter.offsets.offset_log import route_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.protocol.messages import WorkerSpec


def lock_path(spec: WorkerSpec, directory: Path) -> Path:
    """Return the lock file of the shard of *spec*, in the log *directory*."""
    return route_folder(directory, spec.route) / f"{spec.shard}.lock"


@contextmanager
def hold_shard_lock(path: Path) -> Iterator[None]:
    """Hold the shard: a worker of a dead engine may still be finishing its slice.

    No two workers, of this engine or another, ever deliver for one shard at the same time.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
