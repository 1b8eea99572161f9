"""The body of a worker's Spark task: one long-running task a shard.

The idea of Spark's continuous processing: the task stays, and slices come to
it over a socket, so a slice costs no job. Measured in DESIGN.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.engine.worker import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.engine.protocol import WorkerSpec


def pump(spec: WorkerSpec, partition: Iterator[int]) -> Iterator[int]:
    """Serve *spec* until the engine closes the connection."""
    # A task that leaves input behind costs its Python process.
    for _ in partition:
        pass
    run(spec)
    return iter(())
