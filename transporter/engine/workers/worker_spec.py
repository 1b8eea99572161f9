"""The specification that a route's workers are started with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from transporter.protocol.messages import Hello, Invitation, WorkerSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.log.commit_log import CommitLog
    from transporter.offsets.state import RouteState
    from transporter.pipeline.config import Pipeline, RouteConfig
    from transporter.protocol.messages import Ticket


def worker_specs(
    config: RouteConfig,
    pipeline: Pipeline,
    log: CommitLog,
    state: RouteState,
    attempt: int,
    highest_handed: int,
) -> list[WorkerSpec]:
    """Return the specs of the next workers of the route of *config*, one a shard.

    A DataFrame route needs only one: Spark distributes the keys to its tasks.

    Args:
        config: the route's settings.
        pipeline: the route's pipeline.
        log: the log that the workers read.
        state: the progress of the route, with its generation.
        attempt: the number of the request for workers in this run.
        highest_handed: the highest offset that this run has handed to workers of the route.

    """
    first = WorkerSpec(
        route=config.name,
        shard=0,
        shards=config.parallelism,
        epoch=log.epoch,
        generation=state.generation,
        log_directory=str(log.directory),
        log_id=log.log_id,
        namespace=config.namespace,
        steps=config.steps,
        one_per_key=config.max_in_flight_per_key is not None,
        writer=config.writer.adaptor,
        settings=config.writer.settings,
        secrets=config.writer.secrets,
        folder=str(pipeline.file.parent),
        slice_timeout=config.slice_timeout,
        memory=config.worker_memory,
        attempt=attempt,
        on_frames=config.on_frames,
        turns=pipeline.turns,
        runs=log.runs,
        handed=highest_handed,
        declared=state.declared,
    )
    count = 1 if config.on_frames else config.parallelism
    return [replace(first, shard=shard) for shard in range(count)]


def create_invitation(
    spec: WorkerSpec, ticket: Callable[[str], Ticket], place: str = ""
) -> Invitation:
    """Return the invitation in the job of a worker for *spec*.

    *ticket* returns a ticket for a claim. *place* is that of the log, if workers may run on
    other hosts.
    """
    hello = Hello(spec.route, spec.shard, spec.epoch, 0, spec.attempt)
    return Invitation(
        ticket(hello.claim),
        spec.route,
        spec.shard,
        spec.epoch,
        spec.attempt,
        spec.log_directory,
        place,
        spec.on_frames,
    )
