"""Files of goharvest as pipeline files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from ruamel.yaml import YAML

from transporter.errors import ConfigError
from transporter.pipeline.config import load
from transporter.scaffold.conversion import convert_file

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.scaffold.conversion.draft import Converted

SMALL = """\
harvest:
  baseKafkaConfig:
    bootstrap.servers: localhost:9092
  dataSource: host=localhost port=5432 user=postgres password= dbname=postgres sslmode=disable
"""
WHOLE = """\
harvest:
  baseKafkaConfig:
    bootstrap.servers: kafka-1:9094,kafka-2:9094
    security.protocol: SASL_SSL
    ssl.ca.location: certs/ca.pem
    sasl.mechanism: SCRAM-SHA-512
    sasl.username: shop
    sasl.password: very-hidden-1
  producerKafkaConfig:
    compression.type: lz4
    enable.idempotence: true
  leaderTopic: shop-election
  leaderGroupID: shop
  dataSource: host=db user=shop password=very-hidden-2 dbname=shop sslmode=disable
  outboxTable: shop.outbox
  limits:
    heartbeatTimeout: 1m30s
    minPollInterval: 1s
    maxInFlightRecords: 1000
    markQueryRecords: 200
    queueTimeout: 45s
    sendConcurrency: 4
logging:
  level: Debug
"""


def converted(folder: Path, text: str) -> tuple[Converted, dict[str, Any]]:
    """Convert a file. Return the result, and its values."""
    old = folder / "reaper.yaml"
    old.write_text(text)
    found = convert_file(old)
    return found, YAML(typ="safe", pure=True).load(found.text)


def test_the_table_and_the_brokers(tmp_path: Path) -> None:
    """A small file becomes a pipeline that loads as it is: the same table, the same brokers."""
    found, values = converted(tmp_path, SMALL)
    (reader,), (route,) = values["readers"], values["routes"]
    assert reader["adaptor"] == "postgres-outbox"
    assert reader["table"] == "outbox"
    assert set(reader["dsn"].split()) == {
        "host=localhost",
        "port=5432",
        "user=postgres",
        "dbname=postgres",
        "sslmode=disable",
    }
    assert route["writer"] == {"adaptor": "kafka", "bootstrap_servers": "localhost:9092"}
    assert [each.partition(": ")[2][:34] for each in found.warnings] == [
        "a word without a value is left out",
        "goharvest always elects a leader. ",
    ]
    new = tmp_path / "new.yaml"
    new.write_text(found.text)
    assert load(new, {}).name == "reaper"


def test_every_setting_that_has_a_counterpart(tmp_path: Path) -> None:
    """Connection, election and limits arrive as settings of reader, elector, route and writer."""
    _, values = converted(tmp_path, WHOLE)
    (reader,), (route,) = values["readers"], values["routes"]
    assert values["name"] == "shop"
    assert (reader["table"], reader["batch_rows"], reader["max_in_flight"]) == (
        "shop.outbox",
        200,
        1000,
    )
    elector = reader["elector"]
    assert (elector["topic"], elector["group"]) == ("shop-election", "shop")
    assert (elector["term"], elector["heartbeat"]) == ("90s", "1s")
    assert elector["client"]["sasl.username"] == "shop"
    assert route["slice_timeout"] == "45s"
    writer = route["writer"]
    assert (writer["security_protocol"], writer["sasl_mechanism"]) == ("sasl_ssl", "SCRAM-SHA-512")
    assert (writer["username"], writer["ssl_ca"]) == ("shop", "certs/ca.pem")
    assert writer["client"] == {"compression.type": "lz4"}


def test_no_secret_is_copied(tmp_path: Path) -> None:
    """Passwords become variables, in the reader, in the elector and in the writer."""
    found, values = converted(tmp_path, WHOLE)
    assert "very-hidden" not in found.text + "".join(found.warnings)
    (reader,), (route,) = values["readers"], values["routes"]
    assert reader["dsn"].startswith("${OUTBOX_DSN:?")
    assert reader["elector"]["client"]["sasl.password"].startswith("${KAFKA_SASL_PASSWORD:?")
    assert route["writer"]["password"].startswith("${KAFKA_SASL_PASSWORD:?")


def test_each_loss_is_a_comment_and_a_warning_with_its_line(tmp_path: Path) -> None:
    """What has no counterpart, or the adaptor refuses, is named in the file and on stderr."""
    found, _ = converted(tmp_path, WHOLE)
    for line, text in (
        (11, "producerKafkaConfig.enable.idempotence: the kafka writer does not accept it"),
        (22, "limits.sendConcurrency has no counterpart"),
        (23, "logging has no counterpart"),
    ):
        (warning,) = (each for each in found.warnings if text in each)
        assert warning.startswith(f"reaper.yaml:{line}: ")
        assert f"# TODO {warning.partition(': ')[2]}" in found.text
    assert found.text.count("# TODO ") == len(found.warnings)


def test_a_dollar_stays_a_dollar(tmp_path: Path) -> None:
    """A file of goharvest has no variables, so text that looks like one is not replaced."""
    _, values = converted(tmp_path, SMALL.replace("localhost:9092", '"${HOME}:9092"'))
    assert values["routes"][0]["writer"]["bootstrap_servers"] == "$${HOME}:9092"


@pytest.mark.parametrize(
    ("go", "ours"), [("100ms", "100ms"), ("1m0s", "60s"), ("1h", "3600s"), ("1.5s", "1500ms")]
)
def test_a_duration_of_go(tmp_path: Path, go: str, ours: str) -> None:
    """Durations of several units become one of ours."""
    _, values = converted(tmp_path, f"{SMALL}  limits: {{queueTimeout: {go}}}\n")
    assert same_duration(values["routes"][0]["slice_timeout"]) == same_duration(ours)


def same_duration(text: str) -> float:
    """Return the seconds of a duration."""
    from transporter.units import parse_duration  # noqa: PLC0415 - the test's own need

    return parse_duration(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: orders\n", "not a file of goharvest"),
        ("- a\n", "not a file of goharvest"),
        ("harvest: [1]\n", "not a file of goharvest"),
        (f"{SMALL}  limits: {{queueTimeout: soon}}\n", "not a duration of Go"),
        (f"{SMALL}  limits: [1]\n", "limits must be a mapping"),
        ("harvest: {a: &b 1}\n", "anchor"),
        (SMALL.replace("localhost:9092", '""'), "no pipeline file may have"),
        (f"{SMALL}  limits: {{maxInFlightRecords: none}}\n", "no pipeline file may have"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    """A file that is not goharvest's, or whose values cannot be used, is a configuration error."""
    with pytest.raises(ConfigError, match=problem):
        converted(tmp_path, text)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """The error names the file."""
    with pytest.raises(ConfigError, match="cannot be read"):
        convert_file(tmp_path / "gone.yaml")
