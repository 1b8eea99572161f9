"""Giving an engine its control sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.control.live import Live
from transporter.control.metadata import ReadOnly
from transporter.control.server import ControlServer, StatusServer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transporter.engine.engine import Engine
    from transporter.engine.events import Observer


def attach_control(engine: Engine, environ: Mapping[str, str], observe: Observer) -> None:
    """Let operators reach *engine* for as long as it runs; to be called before it starts.

    Those of the log directory's group may look at it, and change nothing.

    Variables of a pipeline file that is read again come from *environ*.
    """
    operations = Live(engine, environ, observe)
    engine.attach(ControlServer(operations, engine.log.directory, observe))
    engine.attach(StatusServer(ReadOnly(operations), engine.log.directory, observe))
