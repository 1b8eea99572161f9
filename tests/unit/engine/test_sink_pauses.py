"""A pause requested by a sink, which outlives the worker that received it."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

from engine_tools import Events, running, until
from http_tools import OK, Receiver, Reply

from transporter.pipeline.config import load

if TYPE_CHECKING:
    from pathlib import Path

    from http_tools import Request


def test_a_retry_after_outlives_its_worker(tmp_path: Path) -> None:
    """A worker that succeeds a killed one sends nothing before the pause is over."""
    times: list[float] = []

    def decide(_: Request) -> Reply:
        times.append(time.monotonic())
        return OK if len(times) > 1 else Reply(503, (("Retry-After", "3"),))

    (tmp_path / "in.jsonl").write_text('{"n": 1}\n')
    with Receiver(decide) as receiver:
        path = tmp_path / "p.yaml"
        path.write_text(
            "log: {dir: log}\n"
            "readers: [{name: in, adaptor: file, path: in.jsonl}]\n"
            f"routes: [{{name: out, writer: {{adaptor: http, url: '{receiver.url}'}}}}]\n"
        )
        events: Any = Events()
        with running(load(path, {}), events=events) as engine:
            until(lambda: events.named("route-retrying"))
            (retrying,) = events.named("route-retrying")
            os.kill(events.named("worker-connected")[0]["pid"], signal.SIGKILL)
            until(lambda: engine.wait(0.02))
        assert len(events.named("worker-connected")) == 2
    assert len(times) == 2
    assert times[1] - times[0] >= 2.9
    assert retrying["retry_in"] >= 2.9
