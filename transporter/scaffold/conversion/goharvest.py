"""Conversion of goharvest's YAML file, as its program ``reaper`` reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from transporter.errors import ConfigError
from transporter.pipeline.adaptor_registry import READER, WRITER
from transporter.pipeline.problems import TELLING
from transporter.pipeline.yaml_document import read
from transporter.scaffold.conversion.connection import postgres_dsn
from transporter.scaffold.conversion.draft import (
    Converted,
    Draft,
    Part,
    literal,
    pipeline_name,
    variable,
)
from transporter.units import format_duration

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.pipeline.yaml_document import Document, KeyPath

_TOP: Final = "harvest"
_GO_DURATION: Final = re.compile(r"(?:[0-9.]+(?:ns|us|µs|ms|s|m|h))+")
_GO_PART: Final = re.compile(r"([0-9.]+)(ns|us|µs|ms|s|m|h)")
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_SERVERS: Final = "bootstrap.servers"
_ELECTION: Final = ("heartbeatTimeout", "minPollInterval")
_LOST: Final = {
    "ioErrorBackoff": "a reader's pauses grow by themselves; a route has retry.backoff",
    "pollDuration": "the election does not wait for long",
    "maxPollInterval": "a leader that is late is fenced",
    "drainInterval": "a stop has shutdown_timeout",
    "markBackoff": "without rows the reader waits for a notification, or poll_interval",
    "sendConcurrency": "a route has one worker; parallelism divides its keys among several",
    "sendBuffer": "nothing is buffered between the table and the log",
    "minMetricsInterval": "metrics are served at observe.listen",
}
_KAFKA: Final = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "username",
    "sasl.password": "password",
    "ssl.ca.location": "ssl_ca",
    "ssl.certificate.location": "ssl_certificate",
    "ssl.key.location": "ssl_key",
    "ssl.key.password": "ssl_key_password",
}
"""Properties of librdkafka that the writer has settings for."""
_ELECTED: Final = re.compile(r"(security|sasl|ssl)\..+")
_TOKENS: Final = "sasl.oauthbearer."
"""Beginning of properties that may hold a secret among other words."""


def convert(path: Path) -> Converted:
    """Return the pipeline file for goharvest's file at *path*.

    Raises:
        ConfigError: If the file is not one of goharvest's.
    """
    # Its values are as they are written, because goharvest knows no variables.
    document = read(path, {}, only=lambda _: False)
    harvest = document.root.get(_TOP) if isinstance(document.root, dict) else None
    if not isinstance(harvest, dict):
        raise ConfigError(f"is not a file of goharvest: it has no mapping '{_TOP}'", str(path))
    return _Harvest(document, harvest, path).convert()


@dataclass(slots=True)
class _Harvest:
    """The values of one file."""

    document: Document
    values: dict[str, Any]
    path: Path

    def convert(self) -> Converted:
        name = pipeline_name(str(self.values.get("leaderGroupID") or self.path.stem))
        draft = Draft(self.path.name, name)
        draft.top["log"] = {"dir": f"./data/{name}"}
        reader = Part(READER, "outbox", "postgres-outbox", {})
        kafka = Part(WRITER, "kafka", "kafka", {})
        draft.parts += [reader, kafka]
        base, producer = self._mapping("baseKafkaConfig"), self._mapping("producerKafkaConfig")
        self._source(draft, reader)
        self._sink(draft, kafka, {"baseKafkaConfig": base, "producerKafkaConfig": producer})
        self._elector(draft, reader, base)
        self._limits(draft, reader, kafka)
        self._others(draft)
        return draft.finish()

    def _line(self, *keys: str) -> int:
        path: KeyPath = (_TOP, *keys)
        return self.document.line(path)

    def _mapping(self, key: str) -> dict[str, Any]:
        value = self.values.get(key) or {}
        if not isinstance(value, dict):
            raise ConfigError(f"{key} must be a mapping", str(self.path), self._line(key))
        return dict(value)

    def _source(self, draft: Draft, reader: Part) -> None:
        source = str(literal(self.values.get("dataSource") or ""))
        line = self._line("dataSource")
        reader.settings["dsn"] = (
            postgres_dsn(source, "OUTBOX_DSN", draft, reader, line)
            if source
            else variable("OUTBOX_DSN", "set it to the database that holds the outbox table")
        )
        table = literal(self.values.get("outboxTable", "outbox"))
        draft.offer(reader, "table", table, self._line("outboxTable"), "outboxTable")

    def _sink(self, draft: Draft, kafka: Part, maps: dict[str, dict[str, Any]]) -> None:
        servers = maps["baseKafkaConfig"].get(_SERVERS, "localhost:9092")
        kafka.settings["bootstrap_servers"] = literal(str(servers))
        for origin, properties in maps.items():
            for key, value in properties.items():
                if key != _SERVERS:
                    self._property(draft, kafka, (origin, key), value)

    def _property(self, draft: Draft, kafka: Part, path: tuple[str, str], value: object) -> None:
        """Add a property of librdkafka to the writer, a secret one by a variable."""
        key, line, origin = path[1], self._line(*path), f"{path[0]}.{path[1]}"
        held: object = literal(value)
        if _is_secret(key):
            held = self._secret(draft, kafka, key, line)
        if (name := _KAFKA.get(key)) is not None:
            text = str(held)
            kafka.settings[name] = text.lower() if name == "security_protocol" else held
            return
        client = dict(kafka.settings.get("client", {}))
        draft.offer(kafka, "client", {**client, key: held}, line, origin)

    def _secret(self, draft: Draft, part: Part, key: str, line: int) -> str:
        name = "KAFKA_" + re.sub(r"\W", "_", key).upper()
        draft.warn(line, f"{key} is not copied, because it is a secret: set {name}", part)
        return variable(name, f"set it to {key}")

    def _elector(self, draft: Draft, reader: Part, base: dict[str, Any]) -> None:
        topic, group = self.values.get("leaderTopic"), self.values.get("leaderGroupID")
        if topic is None and group is None:
            draft.warn(
                self._line(),
                "goharvest always elects a leader. This file has no elector, so only one engine "
                'may read the outbox: docs/outbox.md, "Several engines"',
                reader,
            )
            return
        elector: dict[str, Any] = {
            "kind": "kafka",
            "bootstrap_servers": literal(str(base.get(_SERVERS, "localhost:9092"))),
            "topic": literal(topic if topic is not None else f"{group}.neli"),
        }
        if group is not None:
            elector["group"] = literal(group)
        elector |= self._election_limits(draft, reader)
        client = {
            key: self._elected(key, value) for key, value in base.items() if _ELECTED.fullmatch(key)
        }
        if client:
            elector["client"] = client
        draft.warn(
            self._line("leaderTopic"),
            "the election must have a topic of its own, and goharvest must not run beside it: "
            "create one, or use {kind: postgres}",
            reader,
        )
        draft.offer(reader, "elector", elector, self._line("leaderTopic"), "leaderTopic")

    def _elected(self, key: str, value: object) -> object:
        if not _is_secret(key):
            return literal(value)
        return variable("KAFKA_" + re.sub(r"\W", "_", key).upper(), f"set it to {key}")

    def _election_limits(self, draft: Draft, reader: Part) -> dict[str, str]:
        limits = self._mapping("limits")
        named = {"heartbeatTimeout": "term", "minPollInterval": "heartbeat"}
        found = {}
        for key in _ELECTION:
            if key in limits:
                found[named[key]] = self._duration(limits[key], f"limits.{key}", key)
        if "heartbeat" in found and "term" not in found:
            # A heartbeat may be at most half of the term, which is 5 s by default.
            draft.warn(
                self._line("limits", "minPollInterval"),
                "limits.minPollInterval is the pause between two looks, and heartbeat that between "
                "two heartbeats, of which at least two must fit into term",
                reader,
            )
        return found

    def _limits(self, draft: Draft, reader: Part, kafka: Part) -> None:
        limits = self._mapping("limits")
        for key, value in limits.items():
            line = self._line("limits", key)
            if key == "markQueryRecords":
                draft.offer(reader, "batch_rows", value, line, f"limits.{key}")
            elif key == "maxInFlightRecords":
                reader.keys["max_in_flight"] = value
            elif key == "queueTimeout":
                kafka.keys["slice_timeout"] = self._duration(value, f"limits.{key}", key)
            elif key in _LOST:
                draft.warn(line, f"limits.{key} has no counterpart: {_LOST[key]}", reader)
            elif key not in _ELECTION:
                draft.warn(line, f"limits.{key} is not a setting of goharvest", reader)

    def _duration(self, value: object, what: str, key: str) -> str:
        text = str(value)
        if not _GO_DURATION.fullmatch(text):
            raise ConfigError(
                f"{what} is not a duration of Go, such as 500ms",
                str(self.path),
                self._line("limits", key),
            )
        return format_duration(
            round(sum(float(n) * _SECONDS[unit] for n, unit in _GO_PART.findall(text)), 6)
        )

    def _others(self, draft: Draft) -> None:
        """Note keys that are not converted: names of the process, log levels and unknown ones."""
        ours = ("baseKafkaConfig", "producerKafkaConfig", "dataSource", "outboxTable", "limits")
        for key in self.values:
            if key == "name":
                draft.warn(self._line(key), "name has no counterpart: a term has a random id")
            elif key not in (*ours, "leaderTopic", "leaderGroupID"):
                draft.warn(self._line(key), f"{key} is not a setting of goharvest")
        for key in self.document.root:
            if key == "logging":
                line = self.document.line((key,))
                draft.warn(line, "logging has no counterpart here: run has --log-level")
            elif key != _TOP:
                draft.warn(self.document.line((key,)), f"{key} is not a setting of goharvest")


def _is_secret(key: str) -> bool:
    return bool(TELLING.search(key)) or key.startswith(_TOKENS)
