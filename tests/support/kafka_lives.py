"""Lives of a transactional Kafka writer, each in a process of its own, most of them cut short."""

from __future__ import annotations

import os
import random
import signal
import sys
import uuid
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from kafka_tools import consume
from transporter_adaptors.kafka import transactions
from transporter_adaptors.kafka.config import KafkaWriterConfig
from transporter_adaptors.kafka.writer import KafkaWriter

from transporter.adaptor import WriterContext
from transporter.errors import RouteFault
from transporter.message import Entries, Message
from transporter.testing import RecordingAck, entries
from transporter.worker.shards import entries_of_shard

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkServerContext, ForkServerProcess

    from services.kafka import Broker

FENCED = 7
"""Exit code of a life that was fenced by another engine."""

CALLS = ("init_transactions", "send_offsets_to_transaction", "commit_transaction")
MOMENTS = [(when, call) for call in CALLS for when in ("before", "after")]


@dataclass(frozen=True)
class Death:
    """The end or halt of a life: the moment beside the ``count``-th call of ``call``."""

    when: str
    call: str
    count: int = 1
    how: int = signal.SIGKILL


@dataclass(frozen=True)
class World:
    """A log of ``rows`` messages, and their destination."""

    servers: str
    topic: str
    rows: int
    log_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    shards: int = 1

    def message(self, offset: int) -> Message:
        """Return the log's message at *offset*."""
        return Message("orders", b"%d" % offset, b"key-%d" % (offset % 7))

    def slice(self, first: int, size: int, shard: int) -> Entries:
        """Return the entries of *shard* among *size* offsets from *first* on."""
        last = min(first + size, self.rows)
        whole = entries([self.message(offset) for offset in range(first, last)], first)
        if self.shards == 1:
            return whole
        return replace(whole, batch=entries_of_shard(whole.batch, shard, self.shards))


def live(world: World, epoch: int, shard: int, seed: int, death: Death | None) -> None:
    """Deliver from the sink's stored offset to the end, unless *death* comes first."""
    chance = random.Random(seed)
    if death is not None:
        transactions.WriterTransactions._call_with_retry = dying(death)  # type: ignore[method-assign]
    writer = KafkaWriter(
        KafkaWriterConfig(bootstrap_servers=world.servers, topic=world.topic, transactional=True)
    )
    try:
        context = WriterContext(
            world.log_id, "route", epoch, shard=shard, shards=world.shards, deadline=20.0
        )
        stored = writer.open(context)
        following = stored is not None and stored.shards == world.shards
        first = stored.offset + 1 if stored is not None and following else 0
        while first < world.rows:
            size = chance.randint(1, 40)
            batch = world.slice(first, size, shard)
            first = written(writer, batch, first + size) if len(batch) else first + size
    except RouteFault as fault:
        print(fault, file=sys.stderr)  # noqa: T201 - for whom reads the test's output
        sys.exit(FENCED)
    finally:
        writer.close()


def written(writer: KafkaWriter, batch: Entries, behind: int) -> int:
    """Write *batch* until all of it is acked, as a route does. Return *behind*, the next offset."""
    done = 0
    for _ in range(20):
        part = Entries(batch.batch.slice(done), batch.log_id, batch.generation)
        ack = RecordingAck(part)
        writer.write(part, ack)
        done += len(ack.prefix)
        if done == len(batch):
            return behind
        if isinstance(ack.failures[0][0], RouteFault):
            raise ack.failures[0][0]
    raise AssertionError(f"not delivered: {ack.failures}")


def dying(death: Death) -> Callable[..., None]:
    """Return a replacement for a transaction's calls that ends this process at *death*."""
    real, count = transactions.WriterTransactions._call_with_retry, 0

    def call(self: Any, ends: float, act: Callable[..., Any], *values: object) -> None:
        nonlocal count
        meant = act.__name__ == death.call
        count += meant
        if meant and count == death.count and death.when == "before":
            os.kill(os.getpid(), death.how)
        real(self, ends, act, *values)
        if meant and count == death.count and death.when == "after":
            os.kill(os.getpid(), death.how)

    return call


class Nursery:
    """A starter of lives that imports their modules once."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._context: ForkServerContext = get_context("forkserver")
        self._context.set_forkserver_preload([__name__])

    def begin(
        self, world: World, epoch: int, shard: int = 0, death: Death | None = None
    ) -> ForkServerProcess:
        """Start a life."""
        seed = self._chance.randrange(1 << 32)
        process = self._context.Process(target=live, args=(world, epoch, shard, seed, death))
        process.start()
        return process


def some_death(chance: random.Random) -> Death:
    """Return a death at any moment of any of the first transactions."""
    when, call = chance.choice(MOMENTS)
    count = 1 if call == "init_transactions" else chance.randint(1, 6)
    return Death(when, call, count)


def check(broker: Broker, world: World) -> None:
    """Check that the committed messages are the log's, each once, and each key's in order."""
    found = [int(record.value()) for record in consume(broker, world.topic)]
    assert sorted(found) == list(range(world.rows))
    for key in range(7):
        mine = [number for number in found if number % 7 == key]
        assert mine == sorted(mine)


def kill_often(broker: Broker, world: World, kills: int, chance: random.Random) -> int:
    """Deliver the log of *world* in lives of which *kills* are cut short. Return the epochs used.

    Between two deaths at known moments comes one at an unknown one, by the clock.
    """
    nursery, epoch = Nursery(chance), 0
    for number in range(kills):
        epoch += 1
        death = some_death(chance) if number % 2 else None
        life = nursery.begin(world, epoch, death=death)
        life.join(60 if death else chance.uniform(0.1, 1.5))
        life.kill()
        life.join()
        assert life.exitcode in {0, -signal.SIGKILL}, f"exit code {life.exitcode}"
    last = nursery.begin(world, epoch + 1)
    last.join(600)
    assert last.exitcode == 0
    check(broker, world)
    return epoch + 1
