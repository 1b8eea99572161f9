"""Accepted and refused Kafka settings."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError
from transporter_adaptors.kafka import config as config_module
from transporter_adaptors.kafka.config import (
    OWNED,
    READER_OWNED,
    KafkaConnection,
    KafkaReaderConfig,
    KafkaWriterConfig,
    matching_topics,
)

from transporter.pipeline.config import load
from transporter.pipeline.problems import InvalidPipeline

if TYPE_CHECKING:
    from collections.abc import Callable


OAUTHBEARER = {"security_protocol": "sasl_ssl", "sasl_mechanism": "OAUTHBEARER"}
PIPELINE = """\
readers:
  - {name: in, adaptor: demo}
routes:
  - name: out
    writer:
      adaptor: kafka
      bootstrap_servers: b
      topic: t
"""


def config(**settings: object) -> KafkaWriterConfig:
    """Return a configuration with *settings* and a broker."""
    return KafkaWriterConfig.model_validate({"bootstrap_servers": "127.0.0.1:9092", **settings})


@pytest.mark.parametrize("name", sorted(OWNED))
def test_a_setting_that_the_promises_rest_on_is_refused(name: str) -> None:
    """Each setting that the writer owns is refused by name, with the reason."""
    with pytest.raises(ValidationError) as failure:
        config(client={name: "1", "linger.ms": 1})

    assert f"{name}: {OWNED[name]}" in str(failure.value)


@pytest.mark.parametrize("backoff", [5, "99", 99.9])
def test_too_short_a_backoff_is_refused_for_transactions(backoff: object) -> None:
    """A short backoff may block the client for ever, and is allowed without transactions only."""
    client = {"retry.backoff.ms": backoff}
    with pytest.raises(ValidationError, match=r"retry\.backoff\.ms of 100 at least"):
        config(topic="t", transactional=True, client=client)

    assert config(topic="t", client=client).client == client
    assert config(topic="t", transactional=True, client={"retry.backoff.ms": 100}).transactional


def test_no_value_is_shown_in_an_error_or_in_the_text_of_a_configuration() -> None:
    """Neither a refused nor an accepted configuration shows a client setting's value."""
    with pytest.raises(ValidationError) as failure:
        config(client={"acks": "1", "sasl.password": "hunter2"})

    assert "hunter2" not in str(failure.value)
    assert "hunter2" not in repr(config(client={"sasl.password": "hunter2"}))


@pytest.mark.parametrize("topic", ["orders", "{namespace}", "a.{namespace}.b", "A-1_x.y"])
def test_topics_with_the_namespace_or_without_are_taken(topic: str) -> None:
    """A topic is fixed unless it holds the namespace."""
    assert config(topic=topic).fixed_topic == (None if "{" in topic else topic)


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "{key}",
        "{}",
        "{namespace!r}",
        "{namespace:>9}",
        "a b",
        "é",
        "{{x}}",
        ".",
        "{",
        "x" * 250,
    ],
)
def test_topics_that_cannot_be_are_refused(topic: str) -> None:
    """A topic with another field, or with characters that Kafka does not allow, is refused."""
    with pytest.raises(ValidationError):
        config(topic=topic)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (False, None),
        (True, (None, None, {})),
        ("true", (None, None, {})),  # Written like this in a variable.
        ("no", None),
        ({}, (None, None, {})),
        (
            {"partitions": 12, "replication": 3, "config": {"a": 1, "b": True, "c": "x"}},
            (12, 3, {"a": "1", "b": "true", "c": "x"}),
        ),
    ],
)
def test_topics_are_created_as_the_settings_say(given: object, expected: object) -> None:
    """True leaves the topic's settings to the brokers, and a mapping is passed in their format."""
    found = config(create_topics=given).create_topics

    assert (found and (found.partitions, found.replication, found.settings)) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("maybe", "create_topics must be true, false or a mapping"),
        ("{partitions: 0}", "create_topics.partitions must be greater"),
        ("{replicas: 3}", "unknown key 'replicas' in routes[0].writer.create_topics"),
    ],
)
def test_a_wrong_setting_of_new_topics_is_told_with_its_key(
    tmp_path: Path, text: str, words: str
) -> None:
    """A mistake is one problem, whichever form was meant."""
    path = tmp_path / "p.yaml"
    path.write_text(PIPELINE.replace("topic: t", f"create_topics: {text}"))
    with pytest.raises(InvalidPipeline) as failure:
        load(path, {})

    (problem,) = failure.value.problems
    assert words in str(problem)
    assert problem.line == 8


def test_the_defaults_are_one_topic_a_namespace_and_large_messages() -> None:
    """By default the namespace is the topic, and the topic's own size limit decides."""
    assert config().topic == "{namespace}"
    assert (config().create_topics, config().id_headers) == (None, False)
    assert config().max_message_bytes == 16 * 1024**2
    assert config(max_message_bytes="2MiB").max_message_bytes == 2 * 1024**2


def reader(**settings: object) -> KafkaReaderConfig:
    """Return a reader's configuration with *settings*, a broker, a group and a topic."""
    given = {"bootstrap_servers": "127.0.0.1:9092", "group": "g", **settings}
    if "pattern" not in settings:
        given.setdefault("topics", ["orders"])
    return KafkaReaderConfig.model_validate(given)


@pytest.mark.parametrize("name", sorted(READER_OWNED))
def test_a_setting_that_the_readers_promises_rest_on_is_refused(name: str) -> None:
    """Each setting that the reader owns is refused by name, with the reason."""
    with pytest.raises(ValidationError) as failure:
        reader(client={name: "1", "client.id": "x"})

    assert f"{name}: {READER_OWNED[name]}" in str(failure.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"topics": []},
        {"topics": ["a"], "pattern": "b"},
        {"topics": ["a", "b", "a"]},
        {"topics": ["a b"]},
        {"pattern": "("},
        {"pattern": "a(?=b)"},
        {"namespace": "{key}"},
        {"namespace": "{topic!r}"},
        {"group": ""},
        {"on_out_of_range": "ignore"},
        {"batch_rows": 0},
    ],
)
def test_settings_of_a_reader_that_cannot_be_are_refused(settings: dict[str, object]) -> None:
    """Topics with a pattern, another field in the namespace, and unknown policies are refused."""
    with pytest.raises(ValidationError):
        reader(**settings)


def test_a_readers_namespace_may_be_fixed_or_hold_the_topic() -> None:
    """A namespace may be fixed or hold the topic, which is the default."""
    assert reader().namespace == "{topic}"
    assert reader(namespace="orders").namespace == "orders"
    assert reader(namespace="shop.{topic}").namespace == "shop.{topic}"


def test_a_pattern_is_found_anywhere_but_in_internal_topics() -> None:
    """A pattern matches anywhere unless it is anchored, like a route's namespace filter."""
    names = ["b.orders", "orders", "orders-eu", "__orders"]

    assert matching_topics(names, "orders") == ["b.orders", "orders", "orders-eu"]
    assert matching_topics(names, "^orders") == ["orders", "orders-eu"]
    assert matching_topics([], "^orders$") == []


@pytest.mark.parametrize("make", [config, reader])
def test_tls_and_sasl_become_settings_of_the_client(make: Callable[..., Any]) -> None:
    """Each setting has its name in the client, and no text shows a secret."""
    made = make(
        security_protocol="sasl_ssl",
        sasl_mechanism="SCRAM-SHA-512",
        username="ada",
        password="hunter2",
        ssl_ca="/ca.pem",
        ssl_certificate="/cert.pem",
        ssl_key="/key.pem",
        ssl_key_password="hunter3",
    )

    assert made.security_settings == {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ada",
        "sasl.password": "hunter2",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/cert.pem",
        "ssl.key.location": "/key.pem",
        "ssl.key.password": "hunter3",
    }
    assert "hunter" not in repr(made)
    assert made.redact("it said hunter2, hunter3") == "it said ***, ***"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"username": "ada"}, "username and password go together"),
        ({"password": "hunter2"}, "username and password go together"),
        ({"username": "ada", "password": "hunter2"}, "need sasl_mechanism"),
        ({"sasl_mechanism": "PLAIN"}, "needs security_protocol"),
        ({"ssl_ca": "/ca.pem"}, "needs security_protocol"),
        ({"sasl_mechanism": "OAUTHBEARER"}, "needs security_protocol"),
        (OAUTHBEARER, "OAUTHBEARER needs sasl.oauthbearer.method: oidc"),
        ({"client": {"sasl.mechanisms": "OAUTHBEARER"}}, "OAUTHBEARER needs"),
        (
            {**OAUTHBEARER, "username": "ada", "password": "hunter2"},
            "OAUTHBEARER has no username",
        ),
        ({"ssl_key": "/k.pem", "security_protocol": "ssl"}, "go together"),
        (
            {
                "security_protocol": "sasl_ssl",
                "sasl_mechanism": "PLAIN",
                "client": {"security.protocol": "ssl", "sasl.mechanisms": "PLAIN"},
            },
            "given here and in client: sasl_mechanism, security_protocol",
        ),
    ],
)
def test_half_a_security_is_refused(settings: dict[str, object], problem: str) -> None:
    """A setting that would be ignored, or fail at the broker, is refused without any secret."""
    with pytest.raises(ValidationError) as failure:
        config(**settings)

    assert problem in str(failure.value)
    assert "hunter2" not in str(failure.value)


@pytest.mark.parametrize(
    "client",
    [
        {"sasl.oauthbearer.method": "oidc"},
        {"sasl.oauthbearer.method": "OIDC"},
        {"enable.sasl.oauthbearer.unsecure.jwt": True},
    ],
)
def test_tokens_need_no_user_name(client: dict[str, object]) -> None:
    """OAUTHBEARER needs no user name, because the client fetches or makes its tokens."""
    assert config(client=client, **OAUTHBEARER).security_settings["sasl.mechanism"] == "OAUTHBEARER"


def test_a_pipeline_hides_the_secret_of_a_providers_client(tmp_path: Path) -> None:
    """The secret is redacted even in the encoded form that a provider repeats."""
    secret = "s3cr3t+of/ada"  # noqa: S105 - of nobody
    client = f"{{sasl.oauthbearer.client.id: ada, sasl.oauthbearer.client.secret: {secret}}}"
    (tmp_path / "p.yaml").write_text(f"{PIPELINE}      client: {client}\n")
    hide = load(tmp_path / "p.yaml", {}).secrets.hide
    sent = base64.b64encode(f"ada:{secret}".encode()).decode()

    assert hide(f"no {secret}, s3cr3t%2Bof%2Fada") == "no ***, ***"
    assert hide(sent) == "YWRhOn***E="  # The letters around it depend on more than the secret.


@pytest.mark.parametrize(
    ("section", "model"),
    [
        ("## Reader", KafkaReaderConfig),
        ("## Writer", KafkaWriterConfig),
        ("## The connection", KafkaConnection),
    ],
)
def test_the_readme_names_every_setting(section: str, model: type[KafkaConnection]) -> None:
    """Each section's table has one row for each of its settings, in order, and no other."""
    page = Path(config_module.__file__).with_name("README.md").read_text()
    table = (
        page.split(f"\n{section}\n")[1].split("\n\nand those of")[0].split("```yaml\n    boot")[0]
    )
    rows = re.findall(r"^\| (`\w+`.*?) \|", table, re.MULTILINE)
    shared = list(KafkaConnection.model_fields) if model is not KafkaConnection else []

    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert named == [name for name in model.model_fields if name not in shared]


def test_the_defaults_of_a_reader() -> None:
    """By default no committed record is skipped, and no loss is accepted silently."""
    found = reader()
    assert (found.start, found.on_out_of_range, found.isolation) == (
        "earliest",
        "stop",
        "read_committed",
    )
    assert (found.namespace, found.content_type) == ("{topic}", "application/json")
    assert (found.follow, found.batch_rows, found.batch_bytes) == (True, 10_000, 8 * 1024**2)
    assert found.commit_interval == 1.0
