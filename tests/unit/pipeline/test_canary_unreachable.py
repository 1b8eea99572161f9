"""Canaries in the settings of unreachable systems, which no error or finding shows."""

from __future__ import annotations

import time
import traceback
from typing import TYPE_CHECKING, Any

import pytest
from canary_tools import CANARIES, INSTALLED, SASL, TLS, clean, required, written
from pydantic import SecretStr

from transporter.adaptor import WriterContext
from transporter.election.config import Election, KafkaElection, PostgresElection, make_elector
from transporter.errors import TransporterError
from transporter.message import Message
from transporter.pipeline.adaptor_registry import READER, WRITER, find_adaptor
from transporter.pipeline.config import load
from transporter.pipeline.secrets import Secrets, secrets_in
from transporter.testing import RecordingAck, entries

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Nothing:
    """The log's memory of a reader that never was."""

    log_id, position, committable = "log", None, None

    def recent(self) -> Iterator[Any]:
        return iter(())

    undelivered = recent

    def supersede(self) -> None: ...

    def report(self, *_: object, **__: object) -> None: ...


ELSEWHERE = "/proc/self/nowhere/{}/x"
"""A path that cannot be made."""
UNREACHABLE: list[tuple[str, str, dict[str, Any]]] = [
    (READER, "file", {"path": ELSEWHERE}),
    (READER, "kafka", {**SASL, "topics": ["x"], "group": "g", "username": "x", "password": "{}"}),
    (READER, "kafka", {"pattern": "x.*{}", "group": "g", "client": {"client.id": "{}"}}),
    (READER, "kafka-queue", {**SASL, "queue": "q", "username": "x", "password": "{}",
                             "timeout": "300ms"}),
    (READER, "postgres-cdc", {"dsn": "host=127.0.0.1 port=1 user=x password='{}'",
                              "tables": ["public.*"]}),
    (READER, "postgres-outbox", {"dsn": "host=127.0.0.1 port=1 user=x password='{}'"}),
    (READER, "postgres-outbox", {"dsn": "postgresql://x:{}@127.0.0.1:1/x?application_name={}"}),
    (READER, "postgres-outbox", {"dsn": "host=127.0.0.1 port=1 dbname='{}' user='{}'"}),
    (WRITER, "file", {"path": ELSEWHERE}),
    (WRITER, "http", {"url": "http://127.0.0.1:1/{}"}),
    (WRITER, "http", {"url": "http://127.0.0.1:1/", "proxy": "http://x:{}@127.0.0.1:1"}),
    (WRITER, "http", {"url": "http://127.0.0.1:1/", "headers": {"Authorization": "Bearer {}"}}),
    (WRITER, "http", {"url": "http://127.0.0.1:1/", "oauth2": {
        "token_url": "http://127.0.0.1:1/{}", "client_id": "{}", "client_secret": "{}"}}),
    (WRITER, "http", {**TLS, "key_password": "{}"}),
    (WRITER, "kafka", {**SASL, "topic": "x", "username": "x", "password": "{}"}),
    (WRITER, "kafka", {"topic": "x", "client": {"sasl.password": "{}", "debug": "{}"}}),
    (WRITER, "kafka-queue", {**SASL, "username": "x", "password": "{}"}),
    (WRITER, "lmdb", {"path": ELSEWHERE}),
    (WRITER, "postgres", {"dsn": "host=127.0.0.1 port=1 user=x password='{}'"}),
    (WRITER, "postgres", {"dsn": "postgresql://x:{}@127.0.0.1:1/x?application_name={}"}),
    (WRITER, "spark", {"path": ELSEWHERE, "options": {"password": "{}"}}),
]  # fmt: skip
"""Settings with a secret for which opening, probing and writing fail."""


def filled(value: Any, secret: str) -> Any:
    """Return *value* with *secret* wherever it has a place for one."""
    if isinstance(value, dict):
        return {key: filled(each, secret) for key, each in value.items()}
    return value.replace("{}", secret) if isinstance(value, str) else value


def errors(made: Any, kind: str) -> Iterator[BaseException | str]:
    """Yield the errors and findings of *made* when it is opened, used and probed."""
    try:
        if kind == READER:
            made.open(Nothing())
        else:
            made.open(WriterContext("log", "out", 1, deadline=0.5))
            batch = entries([Message("x", b"{}")])
            ack = RecordingAck(batch)
            made.write(batch, ack)
            yield from (str(each) for each in vars(ack).values())
    except Exception as error:  # noqa: BLE001 - whatever a driver raises
        yield error
    finally:
        made.close()
    try:
        yield from (each.text for each in getattr(made, "probe", list)())
    except Exception as error:  # noqa: BLE001 - as above
        yield error


def hidden(secrets: Secrets, error: BaseException | str) -> str:
    """Return the redacted text of *error*, traceback and all."""
    if isinstance(error, str):
        return secrets.hide(error)
    shown = secrets.hide(str(error))
    secrets.hide_in(error)
    return shown + "".join(traceback.format_exception(error))


@pytest.mark.parametrize(("kind", "adaptor", "settings"), UNREACHABLE)
def test_what_cannot_be_reached_is_told_without_a_secret(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    adaptor: str,
    settings: dict[str, Any],
) -> None:
    """An adaptor that cannot open, write or look raises errors that hide every secret."""
    monkeypatch.setattr("transporter_adaptors.kafka.cluster.REQUEST_SECONDS", 0.3)
    monkeypatch.setattr("transporter_adaptors.kafka_queue.writer._PROBE_SECONDS", 0.3)
    form = "plain"
    (tmp_path / "secret").write_text(CANARIES[form])
    (tmp_path / "secret").chmod(0o600)
    config = find_adaptor(kind, adaptor, tmp_path).Config
    base = required(config)
    made = filled(base | settings, "${file:secret}")
    found = load(written(tmp_path, kind, adaptor, made), {})
    part = found.readers[0] if kind == READER else found.routes[0].writer
    shown = [hidden(part.secrets, each) for each in errors(part.cls(part.config), kind)]
    assert shown, "nothing has failed"
    for each in shown:
        clean(form, each, (kind, adaptor))


def test_every_adaptor_that_connects_or_opens_is_among_them() -> None:
    """Every adaptor that connects or opens is among those tried."""
    without = {(READER, "demo")}
    assert {(kind, adaptor) for kind, adaptor, _ in UNREACHABLE} | without == set(INSTALLED)


ELECTIONS: dict[str, tuple[Election, str]] = {
    "its own": (
        PostgresElection(
            kind="postgres", dsn=SecretStr("host=127.0.0.1 port=1 password={}"), term=1
        ),
        "host=127.0.0.1 port=1",
    ),
    "the outbox's": (
        PostgresElection(kind="postgres", term=1),
        "postgresql://x:{}@127.0.0.1:1/{}",
    ),
    "Kafka": (
        KafkaElection(
            kind="kafka",
            bootstrap_servers="127.0.0.1:1",
            topic="x",
            term=1,
            client={
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "x",
                "sasl.password": "{}",
            },
        ),
        "host=127.0.0.1 port=1",
    ),
    "Kafka refuses": (
        KafkaElection(
            kind="kafka",
            bootstrap_servers="127.0.0.1:1",
            topic="x",
            client={"sasl.mechanism": "{}", "security.protocol": "{}"},
        ),
        "host=127.0.0.1 port=1",
    ),
}


@pytest.mark.parametrize("case", ELECTIONS)
def test_an_election_that_cannot_be_held_is_told_without_a_secret(case: str) -> None:
    """An elector with unreachable servers reports and raises none of its secrets."""
    form, (election, dsn) = "plain", ELECTIONS[case]
    secret = CANARIES[form]
    if isinstance(election, KafkaElection):
        election = election.model_copy(update={"client": filled(election.client, secret)})
    elif isinstance(election, PostgresElection) and election.dsn is not None:
        own = SecretStr(election.dsn.get_secret_value().replace("{}", secret))
        election = election.model_copy(update={"dsn": own})
    secrets = secrets_in([secret], election)
    elector = make_elector(election, "x", SecretStr(dsn.replace("{}", secret)))
    shown = []
    try:
        until = time.monotonic() + 0.6
        while time.monotonic() < until:
            shown.append(hidden(secrets, str(elector.pulse(time.monotonic()))))
            time.sleep(0.1)
    except TransporterError as error:
        shown.append(hidden(secrets, error))
    finally:
        elector.close()
    assert shown
    for each in shown:
        clean(form, each, case)
