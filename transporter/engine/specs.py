"""What a worker is told when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.engine.protocol import WorkerSpec

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.engine.carrier import Carrier
    from transporter.log.commit_log import CommitLog
    from transporter.pipeline.config import RouteConfig


def spec_of(
    config: RouteConfig,
    folder: Path,
    log: CommitLog,
    carrier: Carrier,
    generation: int,
    attempt: int,
) -> WorkerSpec:
    """Return what the next worker of the route of *config* is told.

    Args:
        config: the route's settings.
        folder: the pipeline file's, where modules of the user's own are.
        log: what the worker reads.
        carrier: what it calls back.
        generation: how many replays the route has had.
        attempt: how many workers this run has asked for.

    """
    return WorkerSpec(
        address=carrier.address,
        authkey=carrier.authkey,
        route=config.name,
        shard=0,
        shards=1,
        epoch=log.epoch,
        generation=generation,
        log_directory=str(log.directory),
        log_id=log.log_id,
        namespace=config.namespace,
        steps=config.steps,
        one_per_key=config.max_in_flight_per_key is not None,
        writer=config.writer.adaptor,
        settings=config.writer.settings,
        secrets=config.writer.secrets,
        folder=str(folder),
        slice_timeout=config.slice_timeout,
        memory=config.worker_memory,
        attempt=attempt,
    )
