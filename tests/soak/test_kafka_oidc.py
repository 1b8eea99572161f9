"""The Kafka reader and writer with the tokens of an OpenID provider, which the broker verifies."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from election_tools import Watch, elector, until
from services.kafka import run
from services.oidc_kafka import OidcBroker, Provider
from transporter_adaptors.kafka.reader import KafkaReader
from transporter_adaptors.kafka.writer import KafkaWriter
from transporter_adaptors.kafka_queue.reader import KafkaQueueReader
from transporter_adaptors.kafka_queue.writer import KafkaQueueWriter

from transporter.adaptor import Writer, WriterContext
from transporter.errors import (
    EnvironmentFault,
    RouteFault,
    SinkTimeout,
    SinkUnavailable,
    SourceUnavailable,
)
from transporter.message import Message
from transporter.queue import settings_of
from transporter.queue.topics import make_topics
from transporter.queue.tracker import Tracker
from transporter.testing import RecordingAck, entries
from transporter.testing.contracts import first_batch, messages_of
from transporter.testing.doubles import FixedResume

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    """Yield a provider of tokens."""
    with Provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def broker(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OidcBroker]:
    """Yield a running broker that verifies the provider's tokens."""
    with run(partial(OidcBroker, provider), tmp_path_factory.mktemp("oidc")) as broker:
        yield broker


@pytest.fixture
def topic(broker: OidcBroker) -> str:
    """Return a topic."""
    return broker.create_topic(f"oidc-{uuid.uuid4().hex[:8]}")


def settings(broker: OidcBroker, provider: Provider, **changed: Any) -> dict[str, Any]:
    """Return the settings with which ada connects."""
    client = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": provider.url,
        "sasl.oauthbearer.client.id": "ada",
        "sasl.oauthbearer.client.secret": "s3cr3t-of-ada",
        "sasl.oauthbearer.scope": "write",
    }
    return {
        "bootstrap_servers": broker.oidc,
        "security_protocol": "sasl_plaintext",
        "sasl_mechanism": "OAUTHBEARER",
        "client": {**client, **changed},
    }


def opened(topic: str, deadline: float = 10.0, **given: Any) -> KafkaWriter:
    """Return an open writer, and close it if the opening fails."""
    writer = KafkaWriter(KafkaWriter.Config.model_validate({"topic": topic, **given}))
    try:
        writer.open(WriterContext(log_id="log-1", route="route", epoch=1, deadline=deadline))
    except Exception:
        writer.close()
        raise
    return writer


def write(writer: Writer) -> RecordingAck:
    """Write one message."""
    batch = entries([Message("n", b"1", b"k")])
    ack = RecordingAck(batch)
    writer.write(batch, ack)
    return ack


@pytest.mark.parametrize("transactional", [False, True])
def test_reader_and_writer_connect_with_a_token(
    broker: OidcBroker, provider: Provider, topic: str, *, transactional: bool
) -> None:
    """The broker accepts the token that the provider gave to this client."""
    given = settings(broker, provider)
    writer = opened(topic, transactional=transactional, **given)
    assert write(writer).complete
    writer.close()
    read = KafkaReader(KafkaReader.Config(topics=[topic], group=f"of-{topic}", **given))
    read.open(FixedResume())
    assert [message.data for message in messages_of(first_batch(read, 30).messages)] == [b"1"]
    read.close()
    assert {"grant_type": "client_credentials", "scope": "write"} in provider.asked()


def test_a_queue_is_written_and_read_with_a_token(broker: OidcBroker, provider: Provider) -> None:
    """The same settings work for the adaptors of queues."""
    make_topics(settings_of(bootstrap_servers=broker.bootstrap_servers))
    given = {"queue": "jobs", **settings(broker, provider)}
    writer = KafkaQueueWriter(KafkaQueueWriter.Config.model_validate(given))
    writer.open(WriterContext(log_id="log-1", route="route", epoch=1, deadline=10.0))
    assert write(writer).complete
    writer.close()
    read = KafkaQueueReader(KafkaQueueReader.Config.model_validate(given))
    read.open(FixedResume())
    batch = first_batch(read, 30)
    read.delivered(batch.position or "", range(len(batch.messages)))
    read.close()
    assert [message.data for message in messages_of(batch.messages)] == [b"1"]


def test_without_a_token_reader_and_writer_wait(
    broker: OidcBroker, provider: Provider, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider that refuses stops nothing, and the client retries."""
    monkeypatch.setattr("transporter_adaptors.kafka.cluster.REQUEST_SECONDS", 8.0)
    given = settings(broker, provider, **{"sasl.oauthbearer.client.secret": "another"})
    with pytest.raises(SinkUnavailable, match=r"OAUTHBEARER token.*invalid_client"):
        opened(topic, 8.0, **given)
    read = KafkaReader(KafkaReader.Config(topics=[topic], group=f"of-{topic}", **given))
    with pytest.raises(SourceUnavailable, match="OAUTHBEARER token"):
        read.open(FixedResume())
    read.close()


def test_a_token_that_the_broker_refuses_is_waited_for(
    broker: OidcBroker, provider: Provider, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer retries, with the reason, because an expired token looks like a wrong one."""
    with monkeypatch.context() as patch:
        patch.setattr("services.oidc_kafka.AUDIENCE", "another")
        with pytest.raises(SinkUnavailable, match="invalid_token"):
            opened(topic, 3.0, **settings(broker, provider))
    writer = opened(topic, **settings(broker, provider))
    assert write(writer).complete
    writer.close()


def test_a_mechanism_that_the_broker_does_not_know_is_a_fault(
    broker: OidcBroker, topic: str
) -> None:
    """A login that no retry can save stops reader and writer, with the broker's reason."""
    given = {
        "bootstrap_servers": broker.oidc,
        "security_protocol": "sasl_plaintext",
        "sasl_mechanism": "PLAIN",
        "username": "ada",
        "password": "s3cr3t-of-ada",
    }
    with pytest.raises(RouteFault, match="Unsupported SASL mechanism"):
        opened(topic, **given)
    read = KafkaReader(KafkaReader.Config(topics=[topic], group=f"of-{topic}", **given))
    with pytest.raises(EnvironmentFault, match="Unsupported SASL mechanism"):
        read.open(FixedResume())
    read.close()


def test_tokens_are_replaced_before_they_expire(
    broker: OidcBroker, provider: Provider, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer continues beyond the lifetime of its first token."""
    monkeypatch.setattr(provider, "lifetime", 12.0)
    before = len(provider.asked())
    writer = opened(topic, **settings(broker, provider))
    ends = time.monotonic() + 16
    while time.monotonic() < ends:
        assert write(writer).complete
        time.sleep(0.5)
    writer.close()
    assert len(provider.asked()) >= before + 3


def test_a_provider_that_is_away_for_long_halts_nothing(
    broker: OidcBroker, provider: Provider, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last token's expiry the writer waits for the next one, and continues."""
    monkeypatch.setattr(provider, "lifetime", 12.0)
    writer = opened(topic, **settings(broker, provider))
    assert write(writer).complete
    provider.away = True
    refused = written_until(writer, complete=False)
    provider.away = False
    refused += written_until(writer, complete=True)
    writer.close()
    assert {type(error) for error in refused} == {SinkUnavailable}, refused


def test_a_queue_waits_for_a_provider_that_is_away(
    broker: OidcBroker, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue's writer and reader continue when there are tokens again.

    A message that the reader gets while it is closed comes again by the tracker.
    """
    monkeypatch.setattr(provider, "lifetime", 12.0)
    plain = settings_of(bootstrap_servers=broker.bootstrap_servers)
    make_topics(plain)
    given = {"queue": f"of-{uuid.uuid4().hex[:8]}", **settings(broker, provider)}
    writer = KafkaQueueWriter(KafkaQueueWriter.Config.model_validate(given))
    writer.open(WriterContext(log_id="log-1", route="route", epoch=1, deadline=5.0))
    read = KafkaQueueReader(KafkaQueueReader.Config.model_validate(given))
    read.open(FixedResume())
    assert write(writer).complete
    assert len(first_batch(read, 30).messages) == 1
    provider.away = True
    refused = written_until(writer, complete=False)
    ends = time.monotonic() + 15
    while time.monotonic() < ends:
        assert_waits(read)
    provider.away = False
    refused += written_until(writer, complete=True)
    writer.close()
    assert {type(error) for error in refused} <= {SinkUnavailable, SinkTimeout}, refused
    with Tracker(plain):
        read_again(read, given)


def assert_waits(read: KafkaQueueReader) -> None:
    """Poll, and allow no error but an outage."""
    try:
        read.poll(0.5)
    except SourceUnavailable:
        time.sleep(0.5)


def read_again(read: KafkaQueueReader, given: dict[str, Any]) -> None:
    """Read a message once there are tokens, with a new reader if necessary."""
    # A member that could not leave without a token blocks its group for a session, 45 s.
    begun, outages = time.monotonic(), list[tuple[float, str]]()
    while (waited := time.monotonic() - begun) < 150:
        try:
            if len(read.poll(1.0).messages):
                read.close()
                return
        except SourceUnavailable as error:
            outages.append((waited, str(error)))
            read.close()
            read = KafkaQueueReader(KafkaQueueReader.Config.model_validate(given))
            with suppress(SourceUnavailable):
                read.open(FixedResume())
    pytest.fail(f"no message; outages: {outages}")


def test_an_election_goes_on_when_its_provider_is_back(
    broker: OidcBroker, provider: Provider, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without tokens none leads, and candidates keep trying."""
    monkeypatch.setattr(provider, "lifetime", 12.0)
    given = settings(broker, provider)
    client = {
        "security.protocol": given["security_protocol"],
        "sasl.mechanism": given["sasl_mechanism"],
        **given["client"],
    }
    election = {"kind": "kafka", "bootstrap_servers": broker.oidc, "topic": topic}
    with Watch() as watch:
        engine = watch.add(elector(**election, client=client, term="2s"))
        watch.leader()
        provider.away = True
        until(lambda: not engine.leads, "its last token has expired")
        provider.away = False
        watch.leader()
        assert engine.error is None


def written_until(writer: Writer, *, complete: bool) -> list[Exception]:
    """Write until the outcome is *complete*, and return the errors."""
    failed: list[Exception] = []
    begun = time.monotonic()
    while (ack := write(writer)).complete is not complete:
        failed += [error for error, _ in ack.failures]
        assert time.monotonic() - begun < 60, failed
        time.sleep(0.5)
    return failed + [error for error, _ in ack.failures]
