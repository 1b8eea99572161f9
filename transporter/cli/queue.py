"""``transporter queue``: a tracker for message queues on Kafka, and a look into them."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from transporter.cli.groups import group
from transporter.cli.output import printable, table, write, write_json, write_json_list
from transporter.cli.target import AsJson  # noqa: TC001 - Typer reads it
from transporter.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transporter.queue.looking import QueueStats
    from transporter.queue.message import Header, Headers, QueueMessage
    from transporter.queue.metrics import TrackerMetrics
    from transporter.queue.settings import QueueSettings

_REPORT: Final = 10.0
"""Seconds between two lines about what a tracker does."""
_PATIENCE: Final = 10.0
"""Seconds for which somebody at a terminal waits for brokers; a file may say otherwise."""
_SHOWN: Final = 80

Queue = Annotated[str, typer.Argument(help="The queue's name.", metavar="QUEUE")]
File = Annotated[
    Path | None,
    typer.Option("--settings", help="A YAML file with the queue's settings; options override it."),
]
Servers = Annotated[
    str | None,
    typer.Option("--bootstrap-servers", help="Brokers to start from: host:port,…"),
]
QueueTopic = Annotated[
    str | None, typer.Option("--queue-topic", help="Topic of the messages [queue].")
]
MarkersTopic = Annotated[
    str | None, typer.Option("--markers-topic", help="Topic of the markers [queue-markers].")
]
DeadTopic = Annotated[
    str | None,
    typer.Option("--dead-letter-topic", help="Topic of dead letters [queue-dead-letters]."),
]


def build() -> typer.Typer:
    """Put the group together."""
    return group(
        "Message queues on Kafka: track, send, peek, count.",
        init=init,
        tracker=tracker,
        send=send,
        peek=peek,
        stats=stats,
    )


def init(  # noqa: PLR0913 - one argument an option
    *,
    partitions: Annotated[int, typer.Option(help="Partitions of each topic.", min=1)] = 4,
    replication_factor: Annotated[
        int, typer.Option(help="Copies of each partition; -1: the brokers' default.", min=-1)
    ] = -1,
    settings: File = None,
    bootstrap_servers: Servers = None,
    queue_topic: QueueTopic = None,
    markers_topic: MarkersTopic = None,
    dead_letter_topic: DeadTopic = None,
    as_json: AsJson = False,
) -> None:
    """Make the topics of a queue, with limits that fit; those that are there stay as they are.

    Which of them delete what is still needed is told, with what helps.

    Example: transporter queue init --bootstrap-servers 127.0.0.1:9092 --partitions 8
    """
    from transporter.queue.topics import (  # noqa: PLC0415 - imports Kafka's client
        make_topics,
        retention_problems,
    )

    chosen = _settings(
        settings,
        bootstrap_servers=bootstrap_servers,
        queue_topic=queue_topic,
        markers_topic=markers_topic,
        dead_letter_topic=dead_letter_topic,
    )
    made = make_topics(chosen, partitions, replication_factor)
    problems = retention_problems(chosen, chosen.topics)
    if as_json:
        fresh = [name for name, new in made.items() if new]
        write_json({"made": fresh, "topics": list(made), "problems": problems})
        return
    for name, new in made.items():
        write(f"{printable(name)}: {'made' if new else 'was there already'}")
    for problem in problems:
        _note(f"warning: {printable(problem)}")


def tracker(
    *,
    max_redeliveries: Annotated[
        int | None, typer.Option(help="Dead-letter a message after so many [3].", min=0)
    ] = None,
    settings: File = None,
    bootstrap_servers: Servers = None,
    queue_topic: QueueTopic = None,
    markers_topic: MarkersTopic = None,
    dead_letter_topic: DeadTopic = None,
    as_json: AsJson = False,
) -> None:
    """Redeliver what consumers neither ack nor keep alive, until Ctrl-C.

    Run one or several; they share the work. Outages of brokers are waited for.
    What was counted is told at the end, on the way on stderr.

    Example: transporter queue tracker --bootstrap-servers 127.0.0.1:9092
    """
    from transporter.queue.tracker import Tracker  # noqa: PLC0415 - imports Kafka's client

    chosen = _settings(
        settings,
        bootstrap_servers=bootstrap_servers,
        queue_topic=queue_topic,
        markers_topic=markers_topic,
        dead_letter_topic=dead_letter_topic,
        max_redeliveries=max_redeliveries,
    )
    reporter = _Reporter()
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s: %(message)s")
    logging.getLogger("transporter.queue.client").setLevel(logging.ERROR)
    logging.getLogger("transporter.queue").setLevel(logging.INFO)
    found = Tracker(chosen, meter=reporter)
    _stop_on_signals(found)
    _note(f"tracking {chosen.markers_topic} at {chosen.bootstrap_servers}; Ctrl-C ends it")
    found.run()
    counted = asdict(found.metrics())
    if as_json:
        write_json(counted)
    else:
        table(("what", "count"), [(name.replace("_", " "), n) for name, n in counted.items()])


def send(  # noqa: PLR0913 - one argument an option
    queue: Queue,
    values: Annotated[
        list[str] | None,
        typer.Argument(help="Messages; without any, one a line from stdin.", metavar="[VALUE]..."),
    ] = None,
    *,
    key: Annotated[str | None, typer.Option(help="A key that goes with each of them.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(help="A header, as NAME=VALUE; may be repeated.")
    ] = None,
    settings: File = None,
    bootstrap_servers: Servers = None,
    queue_topic: QueueTopic = None,
    as_json: AsJson = False,
) -> None:
    """Send messages to a queue, and wait until the brokers have them.

    Example: transporter queue send jobs '{"job": 7}' --bootstrap-servers 127.0.0.1:9092
    """
    from transporter.queue.producer import QueueProducer  # noqa: PLC0415 - imports Kafka's client

    headers = [_header(text) for text in header or ()]
    chosen = _settings(settings, bootstrap_servers=bootstrap_servers, queue_topic=queue_topic)
    count = 0
    with _quiet(), QueueProducer(chosen) as producer:
        for count, value in enumerate(_values(values), start=1):  # noqa: B007 - the last counts
            producer.post(queue, value, key=_bytes(key), headers=headers)
        producer.flush()
    if as_json:
        write_json({"queue": queue, "sent": count})
    else:
        write(f"sent {count} {'message' if count == 1 else 'messages'} to queue {queue}")


def peek(  # noqa: PLR0913 - one argument an option
    queue: Queue,
    *,
    most: Annotated[int, typer.Option("--first", help="Show so many.", min=1)] = 20,
    dead: Annotated[bool, typer.Option("--dead", help="Show dead letters instead.")] = False,
    settings: File = None,
    bootstrap_servers: Servers = None,
    queue_topic: QueueTopic = None,
    dead_letter_topic: DeadTopic = None,
    as_json: AsJson = False,
) -> int:
    """Show messages that no consumer has begun yet; they stay where they are.

    With --dead the dead letters, each with where it comes from and why it is dead.

    Example: transporter queue peek jobs --first 5 --bootstrap-servers 127.0.0.1:9092
    """
    from transporter.queue import looking  # noqa: PLC0415 - imports Kafka's client

    chosen = _settings(
        settings,
        bootstrap_servers=bootstrap_servers,
        queue_topic=queue_topic,
        dead_letter_topic=dead_letter_topic,
    )
    with _quiet():
        found: Iterator[tuple[QueueMessage, Headers]] = (
            looking.dead_letters(chosen, queue, most)
            if dead
            else ((message, ()) for message in looking.peek(chosen, queue, most))
        )
        if as_json:
            return write_json_list(_as_json(*each) for each in found)
        _show(found, dead=dead)
    return 0


def stats(  # noqa: PLR0913 - one argument an option
    queues: Annotated[
        list[str] | None, typer.Argument(help="Queues; all by default.", metavar="[QUEUE]...")
    ] = None,
    *,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Only depth and oldest, from offsets.")
    ] = False,
    settings: File = None,
    bootstrap_servers: Servers = None,
    queue_topic: QueueTopic = None,
    markers_topic: MarkersTopic = None,
    dead_letter_topic: DeadTopic = None,
    as_json: AsJson = False,
) -> None:
    """Count what waits, what is in progress and what is dead, by queue.

    It reads the topics for that: what waits and is in progress of the queues
    that are named, and the whole queue topic when none is. With --estimate it
    compares offsets instead, which takes no longer for many messages. The depth
    is then an upper bound, and nothing else is counted.

    Example: transporter queue stats jobs --bootstrap-servers 127.0.0.1:9092
    """
    from transporter.queue import looking  # noqa: PLC0415 - imports Kafka's client

    chosen = _settings(
        settings,
        bootstrap_servers=bootstrap_servers,
        queue_topic=queue_topic,
        markers_topic=markers_topic,
        dead_letter_topic=dead_letter_topic,
    )
    with _quiet():
        found = (looking.estimates if estimate else looking.stats)(chosen, queues or ())
    if as_json:
        write_json([asdict(each) for each in found])
    else:
        columns = ("queue", "depth", "in progress", "dead", "oldest waiting", "oldest in progress")
        table(columns, [_stats_row(each) for each in found])


def _settings(file: Path | None, **named: object) -> QueueSettings:
    """Return the settings of *file*, if any, with what is *named* besides."""
    from transporter.queue.settings import QueueSettings, settings_of  # noqa: PLC0415 - heavy

    given = {name: value for name, value in named.items() if value is not None}
    if file is None:
        if "bootstrap_servers" not in given:
            raise ConfigError(
                "where is the queue? Give --bootstrap-servers host:port, or --settings FILE"
            )
        return settings_of(**{"timeout": _PATIENCE, **given})
    from transporter.pipeline import document, explain  # noqa: PLC0415 - heavy
    from transporter.pipeline.problems import InvalidPipeline  # noqa: PLC0415

    read = document.read(file, os.environ)
    if not isinstance(read.root, dict):
        raise ConfigError("must be a mapping of settings", str(file))
    section = explain.Section(read)
    found, problems = explain.validate(QueueSettings, {**read.root, **given}, section, {"": ""})
    if found is None:
        raise InvalidPipeline(*problems)
    return found


class _Reporter:
    """Writes a line about a tracker now and then, when something has changed."""

    def __init__(self) -> None:
        self._last: dict[str, Any] = {}
        self._at = 0.0

    def __call__(self, metrics: TrackerMetrics) -> None:
        now = time.monotonic()
        counted = {name: n for name, n in asdict(metrics).items() if name != "oldest_age"}
        if now - self._at >= _REPORT and counted != self._last:
            self._at, self._last = now, counted
            _note(", ".join(f"{n} {name.replace('_', ' ')}" for name, n in counted.items()))


def _stop_on_signals(found: Any) -> None:  # noqa: ANN401 - a tracker
    def stop(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # the second one ends the process
        found.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


class _quiet:  # noqa: N801 - a context manager
    """Keeps the Kafka client's own words away: what matters comes as an error."""

    def __enter__(self) -> None:
        self._logger = logging.getLogger("transporter.queue.client")
        self._level = self._logger.level
        self._logger.setLevel(logging.CRITICAL)

    def __exit__(self, *_: object) -> None:
        self._logger.setLevel(self._level)


def _values(values: Sequence[str] | None) -> Iterator[bytes]:
    if values:
        yield from (value.encode(errors="surrogateescape") for value in values)
    else:
        yield from (line.rstrip(b"\n") for line in sys.stdin.buffer)


def _header(text: str) -> Header:
    name, mark, value = text.partition("=")
    if not mark or not name:
        raise typer.BadParameter(f"{text!r} is no header; write NAME=VALUE")
    return name, value.encode(errors="surrogateescape")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode(errors="surrogateescape")


def _as_json(message: QueueMessage, ours: Headers) -> dict[str, Any]:
    from transporter.shown import text_of  # noqa: PLC0415 - only here

    found = {
        "partition": message.id[0],
        "offset": message.id[1],
        "key": text_of(message.key),
        "value": text_of(message.value),
        "headers": [[name, text_of(value)] for name, value in message.headers],
        "redeliveries": message.redeliveries,
        "sent": message.sent,
    }
    return (
        {**found, "provenance": {name: text_of(value) for name, value in ours}} if ours else found
    )


def _show(found: Iterator[tuple[QueueMessage, Headers]], *, dead: bool) -> None:
    from transporter.queue.message import REASON  # noqa: PLC0415 - imports Kafka's client

    columns = ["partition", "offset", "key", "value", "redeliveries"]
    rows = [
        (*message.id, _text(message.key), _text(message.value), message.redeliveries)
        + ((_text(dict(ours).get(REASON)),) if dead else ())
        for message, ours in found
    ]
    if rows:
        table([*columns, "reason"] if dead else columns, rows)
    else:
        _note("there are none")


def _text(value: bytes | None) -> str:
    text = "" if value is None else value.decode(errors="backslashreplace")
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _stats_row(found: QueueStats) -> tuple[object, ...]:
    ages = (found.oldest_waiting, found.oldest_in_progress)
    shown = ["" if age is None else f"{age:.1f} s" for age in ages]
    counts = ["" if each is None else each for each in (found.in_progress, found.dead_letters)]
    return (found.queue, found.depth, *counts, *shown)


def _note(text: str) -> None:
    sys.stderr.write(f"{printable(text)}\n")
