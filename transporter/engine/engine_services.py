"""The engine's services that readers and routes share."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transporter.engine.events import Observer
    from transporter.engine.reading.delivery_progress import DeliveryProgress
    from transporter.engine.tracer import Tracer
    from transporter.engine.workers.spark_supervisor import SparkSupervisor
    from transporter.log.commit_log import CommitLog
    from transporter.log.filesystem import FileSystem
    from transporter.pipeline.config import Pipeline
    from transporter.pipeline.secrets import Secrets


class EngineServices(NamedTuple):
    """The engine's services for a reader or a route.

    ``register_secrets`` is called with the secrets of files that were read again. ``attempts``
    numbers the workers, and never repeats a number.
    """

    pipeline: Pipeline
    log: CommitLog
    files: FileSystem
    spark: SparkSupervisor
    deliveries: DeliveryProgress
    observe: Observer
    on_failure: Callable[[BaseException], None]
    register_secrets: Callable[[Secrets], None]
    attempts: Iterator[int]
    redact: Callable[[str], str]
    tracer: Tracer | None = None
