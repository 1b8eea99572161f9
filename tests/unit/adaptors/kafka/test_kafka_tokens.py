"""Tokens of an OpenID provider, which the Kafka client fetches by itself."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError
from http_tools import LOCALHOST, localhost_tls
from services.oidc_kafka import Provider
from transporter_adaptors.kafka.client import ProducerFactory
from transporter_adaptors.kafka.failures import is_fault
from transporter_adaptors.kafka.progress import Groups
from transporter_adaptors.kafka.writer import KafkaWriter

from transporter.adaptor import WriterContext
from transporter.errors import RouteFault, SinkUnavailable
from transporter.kafka.clients import ClientLog

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "s3cr3t-of-ada"  # noqa: S105 - the provider is ours


@pytest.fixture
def provider() -> Iterator[Provider]:
    """Yield a provider of tokens."""
    with Provider() as provider:
        yield provider


def config(provider: Provider, secret: str) -> Any:
    """Return settings of a writer to brokers that do not exist."""
    client = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": provider.url,
        "sasl.oauthbearer.client.id": "ada",
        "sasl.oauthbearer.client.secret": secret,
        "sasl.oauthbearer.scope": "write read",
    }
    return KafkaWriter.Config(
        bootstrap_servers="127.0.0.1:1",
        topic="t",
        security_protocol="sasl_plaintext",
        sasl_mechanism="OAUTHBEARER",
        client=client,
    )


def refusal(settings: Any) -> SinkUnavailable:
    """Return the error of an open."""
    writer = KafkaWriter(settings)
    with pytest.raises(SinkUnavailable) as failure:
        writer.open(WriterContext(log_id="log-1", route="route", epoch=1, deadline=1.0))
    writer.close()
    return failure.value


def test_the_client_asks_the_provider(provider: Provider) -> None:
    """The client fetches a token with the settings' id, secret and scope."""
    assert "OAUTHBEARER" not in str(refusal(config(provider, SECRET)))
    assert provider.asked()[0] == {"grant_type": "client_credentials", "scope": "write read"}


@pytest.mark.exhaustive
def test_a_provider_is_trusted_as_the_system_trusts(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's certificates decide, and nothing is sent to an untrusted provider."""
    provider.tls = localhost_tls()
    monkeypatch.setattr(Provider, "url", f"https://localhost:{provider.port}/token")
    assert "OAUTHBEARER token" in str(refusal(config(provider, SECRET)))
    assert provider.requests == []
    monkeypatch.setenv("SSL_CERT_FILE", str(LOCALHOST))
    assert "OAUTHBEARER token" not in str(refusal(config(provider, SECRET)))
    assert provider.asked()


def test_a_provider_that_refuses_is_waited_for(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    """The provider's reason is reported, and a secret that it repeats is not in the log."""
    with caplog.at_level(logging.DEBUG):
        error = refusal(config(provider, "another/of+ada"))
    assert "Failed to acquire SASL OAUTHBEARER token" in str(error)
    assert "invalid_client" in str(error)
    assert "invalid_client" in caplog.text
    assert "another" not in caplog.text


def test_every_client_of_a_writer_logs_without_secrets(
    provider: Provider, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the one that reads a group's progress, and the one that looks topics up."""
    client = ProducerFactory(config(provider, SECRET), 1.0)
    made: list[dict[str, Any]] = [client.connection_settings()]

    def build(_: object, settings: dict[str, Any]) -> None:
        made.append(settings)
        raise RouteFault("enough")

    monkeypatch.setattr(client, "build_client", build)
    with pytest.raises(RouteFault):
        Groups(client, "t").read("group", 0.0, stable=True)
    for settings in made:
        settings["logger"].log(logging.ERROR, "%s of %s", SECRET, "ada")
    assert caplog.messages == ["*** of ada"] * 2


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Failed to acquire SASL OAUTHBEARER token: Could not connect to server", False),
        ('SASL authentication error: {"status":"invalid_token"} (after 302ms)', False),
        ("SASL X mechanism handshake failed: Local: Broker transport failure: (n/a)", False),
        (
            "SASL X mechanism handshake failed: Broker: Request not valid in current SASL state",
            False,
        ),
        ("FindCoordinator response error: Local: Authentication failure", False),
        ("SASL X mechanism handshake failed: Broker: Unsupported SASL mechanism", True),
        ("SASL authentication error: Authentication failed: Invalid username or password", True),
    ],
)
def test_a_token_may_be_better_next_time_and_a_password_not(text: str, fault: bool) -> None:
    """An outage of brokers or of a provider is retried, and a wrong password is a fault."""
    assert is_fault(KafkaError(KafkaError._AUTHENTICATION, text)) is fault


def test_why_no_broker_is_left_is_kept(provider: Provider) -> None:
    """The reason that came before "all brokers down" is kept."""
    client = ProducerFactory(config(provider, SECRET), 1.0)
    for code in (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION):
        for error in (KafkaError(code), KafkaError(KafkaError._ALL_BROKERS_DOWN)):
            client._record_error(error)
        assert client.last_error is not None
        assert client.last_error.code() == code
    # A fault is not hidden by an error that only repeats it.
    for error in (KafkaError(KafkaError._AUTHENTICATION, "Invalid password"), KafkaError(code)):
        client._record_error(error)
    assert client.last_error.str() == "Invalid password"
    assert client.has_lost_brokers()


def test_the_clients_log_has_no_secrets(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    """Secrets are redacted, and other text stays readable."""
    log = ClientLog(
        "transporter_adaptors.kafka.test", config(provider, "another/of+ada").redact_secrets
    )
    log.log(logging.ERROR, "%s of %s at %s", "another/of+ada", "ada", "another%2Fof%2Bada")
    assert caplog.messages == ["*** of ada at ***"]
