"""What every route of an engine has around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transporter.engine.carrier import Carrier
    from transporter.engine.deliveries import Deliveries
    from transporter.engine.events import Observer
    from transporter.engine.tracing import Tracer
    from transporter.log.commit_log import CommitLog
    from transporter.offsets.offset_log import OffsetLog
    from transporter.pipeline.config import Pipeline
    from transporter.pipeline.secrets import Secrets


class Surroundings(NamedTuple):
    """What a route has around it; ``offsets`` are those of all routes, by name.

    ``learn`` is called with the secrets of files that were read again.
    """

    pipeline: Pipeline
    log: CommitLog
    offsets: Mapping[str, OffsetLog]
    carrier: Carrier
    deliveries: Deliveries
    observe: Observer
    on_failure: Callable[[BaseException], None]
    learn: Callable[[Secrets], None]
    tracer: Tracer | None = None
