"""A copy of a database stays exact, whatever of its way is killed or loses its answers.

Engine, Spark, both servers, and a proxy before each server.
"""

from __future__ import annotations

import random
import signal
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import psycopg
import pytest
from acceptance.test_replicate import await_equal, compare, offset, prepare_replication
from acceptance_tools import await_true, gone, running
from cdc_tools import KEYS, prepare_traced
from pg_nodes import make_node, nodes
from psycopg.conninfo import make_conninfo
from services.postgres import Database
from soak.test_cdc_crashes import Survivors

from transporter.testing import FaultyProxy

if TYPE_CHECKING:
    from pathlib import Path

    from acceptance_tools import Running
    from pg_nodes import Node

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.timeout(1200)]

SEED = 5
KILLS = ("engine", "worker", "jvm", "host", "source", "target", "lose source", "lose target")
ROUNDS = 3
"""Times that each of them is killed, or loses its answers."""


class Server:
    """A server, and the proxy by which the engine reaches it."""

    def __init__(self, node: Node, stack: ExitStack) -> None:
        """Begin to pass everything on."""
        self.node = node
        target = f"{node.folder}/.s.PGSQL.5432"
        self.proxy = stack.enter_context(FaultyProxy(target))

    def dsn(self, direct: str) -> str:
        """Return the connection string by the proxy for that without."""
        return make_conninfo(direct, host="127.0.0.1", port=self.proxy.port, connect_timeout=5)

    def lose_answers(self, after: int) -> None:
        """Lose each answer behind so many bytes for a while, though the server does the work."""
        self.proxy.lose_answers(after)
        time.sleep(2)
        self.proxy.heal()


def kill(what: str, engine: Running, servers: dict[str, Server], chance: random.Random) -> None:
    """Kill a part of the engine, crash a server and start it again, or lose its answers."""
    if what in servers:
        servers[what].node.crash()
        return
    if what.startswith("lose "):
        servers[what.removeprefix("lose ")].lose_answers(chance.choice([0, 40, 4000]))
        return
    # A Spark that has never come up ends an engine, because its settings may be wrong.
    engine.await_event("spark-ready")
    await_true(lambda: engine.descendants(what), 120, what)
    for process in engine.descendants(what):
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)


def progress(target: Database) -> int:
    """Return the stored offset of a server that may just be starting."""
    while True:
        with suppress(psycopg.OperationalError):
            return offset(target)
        time.sleep(0.05)


def test_the_copy_is_exact_whatever_is_killed(tmp_path: Path) -> None:
    """Beside writers and new columns; the stored offset never goes back."""
    chance = random.Random(SEED)
    with nodes("18") as here, ExitStack() as stack:
        there = make_node(here.programs, here, "target")
        for node in (here, there):
            node.start()
        servers = {"source": Server(here, stack), "target": Server(there, stack)}
        source = Database("postgres", here.service)
        target = Database("postgres", there.service)
        prepare_traced(source)
        source.execute("DROP TRIGGER trace ON numbers; DROP TRIGGER trace ON words")
        acts = [*KILLS * ROUNDS]
        chance.shuffle(acts)
        reached, number = -1, 0
        with prepare_replication(source, target, tmp_path) as settings:
            for name, server in servers.items():
                variable = f"{name.upper()}_DSN"
                settings[variable] = server.dsn(settings[variable])
            with Survivors(source, KEYS, seed=SEED, count=3):
                while acts:
                    with running(**settings) as engine:
                        engine.await_event("reader-opened")
                        source.execute(f"ALTER TABLE numbers ADD COLUMN extra_{number} int")
                        number += 1
                        while acts and (what := acts.pop()) != "engine":
                            time.sleep(chance.uniform(0.5, 4.0))
                            kill(what, engine, servers, chance)
                            now = progress(target)
                            assert now >= reached, what
                            reached = now
                        time.sleep(chance.uniform(0.0, 3.0))
                        assert gone(engine.kill(), timeout=5) == []
            with running(**settings) as engine:
                source.execute("INSERT INTO numbers VALUES (100000, 'end')")
                await_equal(source, target, "numbers", "words", timeout=180)
                assert engine.stop() == 0
            for words in ([], ["--with", "log"]):
                assert compare(settings, *words).keys() >= {"public.numbers", "public.words"}
            assert progress(target) > reached
