"""The spec of a DataFrame route in its tasks: requested from the engine, not held by the job.

Spark keeps jobs, spills them and sends them between hosts. Our job holds a ticket only.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from transporter.protocol.messages import TaskHello
from transporter.protocol.network import connect_engine

if TYPE_CHECKING:
    from transporter.protocol.messages import Ticket, WorkerSpec

_KEPT: Final = 4
"""Routes whose specs a process keeps, because Spark reuses it for many tasks."""


@lru_cache(_KEPT)
def spec_of(ticket: Ticket) -> WorkerSpec:
    """Return the spec of the route of *ticket*, requested once in each process.

    Raises:
        EOFError: the route has another worker by now, or none.
        OSError: the engine cannot be reached.
        HostFailed: the peer is not the engine.

    """
    _, route, epoch, attempt = json.loads(ticket.claim)
    with connect_engine(ticket) as engine:
        engine.send(TaskHello(route, epoch, attempt))
        spec: WorkerSpec = engine.recv().spec
        return spec
