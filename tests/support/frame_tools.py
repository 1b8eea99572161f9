"""Routes on DataFrames without an engine: a Spark session, and a delivery of one slice."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from transporter.adaptor import WriterContext
from transporter.embed import cache_directory
from transporter.engine.workers.listener import Listener
from transporter.message import Message, messages_to_batch, with_offsets
from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.pipeline.steps.step import StepConfig
from transporter.protocol.messages import Begin, TaskHello, WorkerSpec
from transporter.spark.dataframe_route import DataFrameDelivery
from transporter.spark.host import configuration, socket_folder
from transporter.spark.java_runtime import find_java
from transporter.worker.delivery import Delivery, deliver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from transporter.protocol.channel import EngineChannel
    from transporter.protocol.messages import Outcome

LOG_ID = "0123456789abcdef0123456789abcdef"


@contextmanager
def session(scratch: Path, **config: str) -> Iterator[SparkSession]:
    """Run Spark as the host of a pipeline with DataFrame routes does."""
    with socket_folder(str(scratch)) as sockets:
        settings = configuration("local", {}, str(scratch), sockets, frames=True) | {
            "spark.log.level": "OFF",
            # A JVM that lives for a minute is not worth optimising.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        }
        with launched(settings | config) as made:
            yield made


@contextmanager
def launched(settings: dict[str, str]) -> Iterator[SparkSession]:
    """Run Spark with *settings*, as a program in an activated environment does."""
    # Another module of this process may have left the gateway of a JVM that has ended.
    SparkContext._gateway = SparkContext._jvm = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(find_java(os.environ, cache_directory())))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder
        for name, value in settings.items():
            builder = builder.config(name, value)
        made = builder.getOrCreate()
        gateway = made.sparkContext._gateway
        yield made
        made.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
        SparkContext._gateway = SparkContext._jvm = None


def entries(count: int, first: int = 0, **data: bytes) -> pa.RecordBatch:
    """Return *count* orders of three customers from the offset *first* on.

    ``at_N=b"…"`` puts other data at the offset N.
    """
    messages = [
        Message(
            "orders",
            data.get(f"at_{number}", b'{"order":%d,"customer":"c%d"}' % (number, number % 3)),
            b"c%d" % (number % 3),
            timestamp=1_700_000_000_000_000 + number,
            headers=(("h", b"\xff"), ("n", None), ("h", b"")),
        )
        for number in range(first, first + count)
    ]
    return with_offsets(messages_to_batch(messages), first, 1_700_000_000_000_000)


def route(
    folder: Path, steps: list[dict[str, Any]], writer: str, settings: dict[str, Any], **more: Any
) -> WorkerSpec:
    """Return the worker specification of a route of these *steps* into *writer*."""
    return WorkerSpec(
        route="daily",
        shard=0,
        shards=more.pop("shards", 1),
        epoch=more.pop("epoch", 1),
        generation=0,
        log_directory=str(folder),
        log_id=LOG_ID,
        namespace=".*",
        writer=writer,
        settings=settings,
        folder=str(folder),
        steps=tuple(
            StepConfig(name=name, settings=value) for step in steps for name, value in step.items()
        ),
        on_frames=True,
        **more,
    )


class Delivering:
    """One open route that receives slices as from its worker."""

    def __init__(self, spec: WorkerSpec, spark: SparkSession, scratch: Path) -> None:
        """Open the writer. ``stored`` holds its stored offset, ``shown`` its output."""
        self.spec, self.shown = spec, []
        own, show = spark.newSession(), self.shown.append
        # Tasks request their specification from an engine.
        self._listener = Listener(refused, refused, on_task=self._told)
        with ExitStack() as stack:
            stack.callback(self._listener.close)
            self._listener.start()
            ticket = self._listener.ticket(TaskHello(spec.route, spec.epoch, spec.attempt).claim)
            begin = Begin(spec, tasks=ticket)
            self._delivery = DataFrameDelivery(begin, own, scratch, show, pytest.fail)
            self.stored = self._delivery.open(WriterContext(LOG_ID, spec.route, spec.epoch))
            stack.pop_all()

    def deliver(self, batch: pa.RecordBatch, generation: int = 0) -> Outcome:
        """Deliver *batch* as one slice."""
        last = batch.column("offset")[-1].as_py()
        known = Delivery(NamespaceFilter(".*"), LOG_ID)
        return deliver(batch, last, generation, known, self._delivery)

    def vanished(self) -> int:
        """Return how many entries the queries dropped."""
        return self._delivery.dropped_count

    def close(self) -> None:
        """Close the writer."""
        self._delivery.close()
        self._listener.close()

    def _told(self, _: TaskHello, caller: EngineChannel) -> None:
        with caller:
            caller.send(Begin(self.spec))


def refused(_: object, caller: EngineChannel) -> None:
    """Close the connection of any caller but a task."""
    caller.close()
