"""Draining an outbox into Kafka, against pollers as users write them by hand."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks.figures import Aim, Comparison, Section
from benchmarks.services import Outbox, Topic, import_test_tool
from benchmarks.setting import ROOT, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.setting import Setting

_AIMS: Final = {"mark": 1.2, "take": 2.0}
_ROWS_AIM: Final = 15.0
_PATIENCE: Final = 120.0
_PIPELINE: Final = """\
name: {name}
log: {{dir: log}}
readers:
  - name: outbox
    adaptor: postgres-outbox
    dsn: ${{OUTBOX_DSN}}
    {claim}
routes:
  - name: kafka
    writer: {{adaptor: kafka, bootstrap_servers: "{servers}", topic: "{name}"}}
"""

METHOD: Final = """\
A real outbox (documents of about 200 bytes, 1000 keys, two headers) drained by a real
`transporter run`, with its defaults, into a real topic. The engine is up and idle. All rows
become visible with one commit. The clock runs from there until the broker has confirmed the last
of them and the table is empty. Each side has its own database and topic, and `VACUUM` and
`CHECKPOINT` come before each turn.

The poller is the program that one would write with psycopg and confluent-kafka:
`DELETE … RETURNING` of 1000 rows, produce, flush, commit, again. It has the same producer
settings, no log and no recovery. "A commit for each row" marks 1000 rows, produces, and deletes
them one by one, as goharvest does."""
LIMITS: Final = """\
`mark` changes every row twice, to mark it and to delete it, where the poller only deletes: the
server takes 7.6 µs of its 11 µs a row. With `take` it is 3.6 of 7, before and after the engine's
1.6, because nothing else can be claimed in that transaction. The worker and the broker work beside
that."""


def measure(setting: Setting) -> Section:
    """Drain the same backlog in turns through the engine and through the pollers."""
    rows, few = setting.scale(100_000, 20_000), setting.scale(5000, 1000)
    claims = _claims()
    with ExitStack() as stack:
        sides: dict[str, Callable[[], float]] = {}
        for claim in claims:
            drain = stack.enter_context(_run_engine(setting, claim, explicit=len(claims) > 1))
            sides[claim] = partial(drain, rows)
        for shape, count in (("batch", rows), ("row", few)):
            sides[shape] = partial(stack.enter_context(_run_poller(setting, shape)), count)
        found = setting.interleave(sides)
    return Section("outbox-kafka-backlog", METHOD, _compare(claims, found), limits=LIMITS)


def _claims() -> list[str]:
    """Return the ways in which the reader can claim rows, as far as it has a choice."""
    fields = importlib.import_module(
        "transporter_adaptors.postgres.config"
    ).OutboxConfig.model_fields
    return ["mark", "take"] if "claim" in fields else ["mark"]


def _compare(claims: list[str], found: dict[str, tuple[float, ...]]) -> tuple[Comparison, ...]:
    by_batch = [
        Comparison(
            f"transporter run, by {claim}",
            "hand-written poller",
            "rows/s",
            found[claim],
            found["batch"],
            Aim(_AIMS[claim], at_least=True),
        )
        for claim in claims
    ]
    by_row = Comparison(
        f"transporter run, by {claims[0]}",
        "a commit for each row",
        "rows/s",
        found[claims[0]],
        found["row"],
        Aim(_ROWS_AIM, at_least=True),
    )
    return (*by_batch, by_row)


@contextmanager
def _run_engine(
    setting: Setting, claim: str, *, explicit: bool
) -> Iterator[Callable[[int], float]]:
    """Run the engine on an empty outbox, and yield a function that times the draining of rows."""
    name = f"bench-{claim}"
    outbox = setting.services.postgres.outbox(name)
    topic = Topic(setting.services.broker, name)
    pipeline = setting.make_folder(name) / "pipeline.yaml"
    pipeline.write_text(
        _PIPELINE.format(
            name=name,
            servers=setting.services.broker.bootstrap_servers,
            claim=f"claim: {claim}" if explicit else "",
        )
    )
    setting.report(f"starting an engine ({claim})")
    with import_test_tool("acceptance_tools").running(pipeline, OUTBOX_DSN=outbox.dsn) as engine:
        engine.await_event("worker-connected", route="kafka")
        yield partial(_drain, outbox, topic, lambda: None)
        engine.stop()
    topic.close()
    outbox.connection.close()


@contextmanager
def _run_poller(setting: Setting, shape: str) -> Iterator[Callable[[int], float]]:
    """Start a poller on an empty outbox, and yield a function that times the draining of rows."""
    name = f"bench-{shape}"
    outbox = setting.services.postgres.outbox(name)
    topic = Topic(setting.services.broker, name)
    servers = setting.services.broker.bootstrap_servers
    command = [sys.executable, "-m", "benchmarks.pollers", shape, outbox.dsn, servers, name]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        _read_line(process)
        yield partial(_drain, outbox, topic, partial(_wake, process))
        process.communicate(timeout=_PATIENCE)
    topic.close()
    outbox.connection.close()


def _wake(process: subprocess.Popen[str]) -> None:
    """Wake the poller at once, as a notification would."""
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    process.stdin.write("go\n")
    process.stdin.flush()


def _read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    return process.stdout.readline()


def _drain(outbox: Outbox, topic: Topic, go: Callable[[], Any], rows: int) -> float:
    """Return the rows drained in a second, from the commit that shows them to the last of them."""
    outbox.tidy()
    before = topic.end
    with outbox.connection.transaction():
        outbox.fill(rows)
    began = time.perf_counter()
    go()
    wait_until(
        lambda: topic.end >= before + rows, _PATIENCE, f"{rows} more messages in {topic.name}"
    )
    wait_until(lambda: outbox.empty, _PATIENCE, f"an empty outbox of {topic.name}")
    return rows / (time.perf_counter() - began)
