"""Commands ``transporter queue``: the tracker of message queues on Kafka, and tools for them."""

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

from transporter.cli.command_group import command_group
from transporter.cli.log_target import AsJson  # noqa: TC001 - Typer reads it
from transporter.cli.output import printable, write, write_json, write_json_list, write_table
from transporter.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transporter.queue.inspection import QueueStats
    from transporter.queue.message import Header, Headers, QueueMessage
    from transporter.queue.metrics import TrackerMetrics
    from transporter.queue.settings import QueueSettings

_REPORT: Final = 10.0
"""Seconds between two lines of a tracker's counts."""
_PATIENCE: Final = 10.0
"""Seconds to wait for brokers without a settings file."""
_SHOWN: Final = 80

Queue = Annotated[str, typer.Argument(help="Queue's name.", metavar="QUEUE")]
File = Annotated[
    Path | None,
    typer.Option("--settings", help="YAML file with the queue's settings; options override it."),
]
Servers = Annotated[
    str | None,
    typer.Option("--bootstrap-servers", help="Initial brokers: host:port,…"),
]
QueueTopic = Annotated[
    str | None,
    typer.Option("--queue-topic", help="Topic of the messages.  [default: queue]"),
]
MarkersTopic = Annotated[
    str | None,
    typer.Option("--markers-topic", help="Topic of the markers.  [default: queue-markers]"),
]
DeadTopic = Annotated[
    str | None,
    typer.Option(
        "--dead-letter-topic", help="Topic of dead letters.  [default: queue-dead-letters]"
    ),
]


def build() -> typer.Typer:
    """Build the group."""
    return command_group(
        "Run and inspect message queues on Kafka.",
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
        int, typer.Option(help="Replicas of each partition; -1: the brokers' default.", min=-1)
    ] = -1,
    settings: File = None,
    bootstrap_servers: Servers = None,
    queue_topic: QueueTopic = None,
    markers_topic: MarkersTopic = None,
    dead_letter_topic: DeadTopic = None,
    as_json: AsJson = False,
) -> None:
    """Create the topics of a queue.

    New topics get suitable limits, and existing ones stay unchanged. It warns of topics
    whose limits delete needed messages, and how to correct them.

    Example:
        transporter queue init --bootstrap-servers 127.0.0.1:9092 --partitions 8
    """
    from transporter.queue.topics import (  # noqa: PLC0415 - imports Kafka's client
        make_topics,
        retention_problems,
    )

    chosen = _load_settings(
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
        write(f"{printable(name)}: {'created' if new else 'existed already'}")
    for problem in problems:
        _note(f"warning: {printable(problem)}")


def tracker(
    *,
    max_redeliveries: Annotated[
        int | None,
        typer.Option(help="Redeliveries before a message is dead.  [default: 3]", min=0),
    ] = None,
    settings: File = None,
    bootstrap_servers: Servers = None,
    queue_topic: QueueTopic = None,
    markers_topic: MarkersTopic = None,
    dead_letter_topic: DeadTopic = None,
    as_json: AsJson = False,
) -> None:
    """Redeliver overdue messages until Ctrl-C.

    A message is overdue when its consumer has neither acked it nor kept it alive in
    time. You can run several trackers, which share the work. They wait for the end of
    broker outages. Counts appear on stderr while the tracker runs, and as its result.

    Example:
        transporter queue tracker --bootstrap-servers 127.0.0.1:9092
    """
    from transporter.queue.tracker import Tracker  # noqa: PLC0415 - imports Kafka's client

    chosen = _load_settings(
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
        write_table(("name", "count"), [(name.replace("_", " "), n) for name, n in counted.items()])


def send(  # noqa: PLR0913 - one argument an option
    queue: Queue,
    values: Annotated[
        list[str] | None,
        typer.Argument(help="Messages; by default the lines of stdin.", metavar="VALUE"),
    ] = None,
    *,
    key: Annotated[str | None, typer.Option(help="Key of each message.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(help="Header of each message; repeatable.", metavar="NAME=VALUE"),
    ] = None,
    settings: File = None,
    bootstrap_servers: Servers = None,
    queue_topic: QueueTopic = None,
    as_json: AsJson = False,
) -> None:
    """Send messages to a queue.

    The command ends when the brokers have stored them.

    Example:
        transporter queue send jobs '{"job": 7}' --settings queue.yaml
    """
    from transporter.queue.producer import QueueProducer  # noqa: PLC0415 - imports Kafka's client

    headers = [_parse_header(text) for text in header or ()]
    chosen = _load_settings(settings, bootstrap_servers=bootstrap_servers, queue_topic=queue_topic)
    count = 0
    with _QuietClient(), QueueProducer(chosen) as producer:
        for count, value in enumerate(_read_values(values), start=1):  # noqa: B007 - the last counts
            producer.post(queue, value, key=_encode_text(key), headers=headers)
        producer.flush()
    if as_json:
        write_json({"queue": queue, "sent": count})
    else:
        write(f"sent {count} {'message' if count == 1 else 'messages'} to queue {queue}")


def peek(  # noqa: PLR0913 - one argument an option
    queue: Queue,
    *,
    most: Annotated[int, typer.Option("--first", help="Maximum number of messages.", min=1)] = 20,
    dead: Annotated[bool, typer.Option("--dead", help="Show dead letters instead.")] = False,
    settings: File = None,
    bootstrap_servers: Servers = None,
    queue_topic: QueueTopic = None,
    dead_letter_topic: DeadTopic = None,
    as_json: AsJson = False,
) -> int:
    """Show messages that no consumer has begun.

    They stay in the queue. With --dead it shows the dead letters instead, each with its
    origin and its reason.

    Example:
        transporter queue peek jobs --first 5 --bootstrap-servers 127.0.0.1:9092
    """
    from transporter.queue import inspection  # noqa: PLC0415 - imports Kafka's client

    chosen = _load_settings(
        settings,
        bootstrap_servers=bootstrap_servers,
        queue_topic=queue_topic,
        dead_letter_topic=dead_letter_topic,
    )
    with _QuietClient():
        found: Iterator[tuple[QueueMessage, Headers]] = (
            inspection.dead_letters(chosen, queue, most)
            if dead
            else ((message, ()) for message in inspection.peek(chosen, queue, most))
        )
        if as_json:
            return write_json_list(_message_json(*each) for each in found)
        _write_messages(found, dead=dead)
    return 0


def stats(  # noqa: PLR0913 - one argument an option
    queues: Annotated[
        list[str] | None, typer.Argument(help="Queues; all by default.", metavar="QUEUE")
    ] = None,
    *,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Only depth and age of the oldest, from offsets.")
    ] = False,
    settings: File = None,
    bootstrap_servers: Servers = None,
    queue_topic: QueueTopic = None,
    markers_topic: MarkersTopic = None,
    dead_letter_topic: DeadTopic = None,
    as_json: AsJson = False,
) -> None:
    """Count a queue's messages by state.

    It counts waiting messages, those in progress and dead letters. For that it reads
    the named queues' messages from the topics, or without a name the whole queue topic.
    With --estimate it compares offsets instead, which is as fast for many messages. The
    depth is then an upper bound, and nothing else is counted.

    Example:
        transporter queue stats jobs --bootstrap-servers 127.0.0.1:9092
    """
    from transporter.queue import inspection  # noqa: PLC0415 - imports Kafka's client

    chosen = _load_settings(
        settings,
        bootstrap_servers=bootstrap_servers,
        queue_topic=queue_topic,
        markers_topic=markers_topic,
        dead_letter_topic=dead_letter_topic,
    )
    with _QuietClient():
        found = (inspection.estimates if estimate else inspection.stats)(chosen, queues or ())
    if as_json:
        write_json([asdict(each) for each in found])
    else:
        columns = ("queue", "depth", "in progress", "dead", "oldest waiting", "oldest in progress")
        write_table(columns, [_stats_row(each) for each in found])


def _load_settings(file: Path | None, **named: object) -> QueueSettings:
    """Return the settings of *file*, if any, overridden by those that are *named*."""
    from transporter.queue.settings import QueueSettings, settings_of  # noqa: PLC0415 - heavy

    given = {name: value for name, value in named.items() if value is not None}
    if file is None:
        if "bootstrap_servers" not in given:
            raise ConfigError(
                "name the brokers by --bootstrap-servers host:port, or by --settings FILE"
            )
        return settings_of(**{"timeout": _PATIENCE, **given})
    from transporter.pipeline import validation_errors, yaml_document  # noqa: PLC0415 - heavy
    from transporter.pipeline.problems import InvalidPipeline  # noqa: PLC0415 - the same

    read = yaml_document.read(file, os.environ)
    if not isinstance(read.root, dict):
        raise ConfigError("must be a mapping of settings", str(file))
    section = validation_errors.Section(read)
    found, problems = validation_errors.validate(
        QueueSettings, {**read.root, **given}, section, {"": ""}
    )
    if found is None:
        raise InvalidPipeline(*problems)
    return found


class _Reporter:
    """Periodic printer of a tracker's counts, if they have changed."""

    def __init__(self) -> None:
        self._last: dict[str, Any] = {}
        self._reported_at = 0.0

    def __call__(self, metrics: TrackerMetrics) -> None:
        now = time.monotonic()
        counted = {name: n for name, n in asdict(metrics).items() if name != "oldest_age"}
        if now - self._reported_at >= _REPORT and counted != self._last:
            self._reported_at, self._last = now, counted
            _note(", ".join(f"{n} {name.replace('_', ' ')}" for name, n in counted.items()))


def _stop_on_signals(found: Any) -> None:  # noqa: ANN401 - a tracker
    def stop(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # the second one ends the process
        found.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


class _QuietClient:
    """Suppressor of the Kafka client's log, because every failure is raised as an error."""

    def __enter__(self) -> None:
        self._logger = logging.getLogger("transporter.queue.client")
        self._level = self._logger.level
        self._logger.setLevel(logging.CRITICAL)

    def __exit__(self, *_: object) -> None:
        self._logger.setLevel(self._level)


def _read_values(values: Sequence[str] | None) -> Iterator[bytes]:
    if values:
        yield from (value.encode(errors="surrogateescape") for value in values)
    else:
        yield from (line.rstrip(b"\n") for line in sys.stdin.buffer)


def _parse_header(text: str) -> Header:
    name, mark, value = text.partition("=")
    if not mark or not name:
        raise typer.BadParameter(f"{text!r} is not a header; use NAME=VALUE")
    return name, value.encode(errors="surrogateescape")


def _encode_text(text: str | None) -> bytes | None:
    return None if text is None else text.encode(errors="surrogateescape")


def _message_json(message: QueueMessage, ours: Headers) -> dict[str, Any]:
    from transporter.bytes_as_json import text_or_base64  # noqa: PLC0415 - only here

    found = {
        "partition": message.id[0],
        "offset": message.id[1],
        "key": text_or_base64(message.key),
        "value": text_or_base64(message.value),
        "headers": [[name, text_or_base64(value)] for name, value in message.headers],
        "redeliveries": message.redeliveries,
        "sent": message.sent,
    }
    return (
        {**found, "provenance": {name: text_or_base64(value) for name, value in ours}}
        if ours
        else found
    )


def _write_messages(found: Iterator[tuple[QueueMessage, Headers]], *, dead: bool) -> None:
    from transporter.queue.message import REASON  # noqa: PLC0415 - imports Kafka's client

    columns = ["partition", "offset", "key", "value", "redeliveries"]
    rows = [
        (*message.id, _value_text(message.key), _value_text(message.value), message.redeliveries)
        + ((_value_text(dict(ours).get(REASON)),) if dead else ())
        for message, ours in found
    ]
    if rows:
        write_table([*columns, "reason"] if dead else columns, rows)
    else:
        _note("there are no messages")


def _value_text(value: bytes | None) -> str:
    text = "" if value is None else value.decode(errors="backslashreplace")
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _stats_row(found: QueueStats) -> tuple[object, ...]:
    ages = (found.oldest_waiting, found.oldest_in_progress)
    shown = ["" if age is None else f"{age:.1f} s" for age in ages]
    counts = ["" if each is None else each for each in (found.in_progress, found.dead_letters)]
    return (found.queue, found.depth, *counts, *shown)


def _note(text: str) -> None:
    sys.stderr.write(f"{printable(text)}\n")
