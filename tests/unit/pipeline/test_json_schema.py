"""The JSON Schema of pipeline files: it takes the files that 'check' takes, not plain mistakes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from transporter.dry_run.cases import cases_schema
from transporter.pipeline.adaptor_registry import READER, WRITER, adaptor_entry_points
from transporter.pipeline.config import load
from transporter.pipeline.json_schema import pipeline_schema
from transporter.pipeline.steps.registry import KINDS

SHIPPED = sorted((Path(__file__).parents[3] / "pipelines").glob("*.yaml"))
PIPELINE = """
name: orders
log: {dir: ./data, segment_bytes: 64MiB, compaction: {after: 7d, keep: key}}
readers:
  - {name: in, adaptor: file, path: in.jsonl, follow: true}
  - {name: own, adaptor: "mine:Reader", anything: 1, release: delivered, max_in_flight: 9}
routes:
  - name: out
    namespace: ^orders
    start: latest
    retry: {attempts: "${ATTEMPTS:-5}", backoff: 200ms..30s}
    on_error: park
    steps: [{omit: {fields: [a.b]}}, {rename: {fields: {a: b}}}]
    writer: {adaptor: kafka, bootstrap_servers: "127.0.0.1:9092"}
  - {name: two, writer: {adaptor: "${SINK}", path: x}, after: out}
"""


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    """Return a validator of the schema, which is itself a valid schema."""
    schema = pipeline_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def values(text: str) -> Any:
    """Read YAML as an editor does."""
    return YAML(typ="safe", pure=True).load(text)


def test_a_right_file_is_right(validator: Draft202012Validator) -> None:
    """Installed adaptors, one's own, variables and expressions pass."""
    assert [error.message for error in validator.iter_errors(values(PIPELINE))] == []


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_what_we_ship_is_right(validator: Draft202012Validator, file: Path) -> None:
    """A file that 'check' finds right the schema finds right, too."""
    names = ("ORDERS_DSN", "SOURCE_DSN", "TARGET_DSN")
    load(file, {**os.environ, **dict.fromkeys(names, "dbname=orders")})
    assert validator.is_valid(values(file.read_text()))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("on_error: park", "on_error: ignore"),
        ("follow: true", "folow: true"),
        ("follow: true", "follow: 3"),
        ("omit: {fields", "omti: {fields"),
        ("omit: {fields: [a.b]}", "omit: {feilds: [a.b]}"),
        ("segment_bytes: 64MiB", "segment_bytes: [1]"),
        ("adaptor: kafka", "adaptor: kakfa"),
        ("adaptor: kafka, bootstrap_servers", "adaptor: kafka, servers"),
        ("name: orders", "nam: orders"),
        ("{name: in, adaptor", "{adaptor"),
        ("  - name: out\n    namespace", "  - namespace"),
        ("keep: key", "keep: keys"),
        ('attempts: "${ATTEMPTS:-5}"', "attempts: 0"),
        ("on_error: park", "slice_rows: 10000001"),
    ],
)
def test_a_plain_mistake_is_refused(
    validator: Draft202012Validator, right: str, wrong: str
) -> None:
    """Misspelt keys, words and adaptors, wrong types and missing keys are errors in an editor."""
    assert right in PIPELINE
    assert not validator.is_valid(values(PIPELINE.replace(right, wrong)))


def test_it_knows_what_is_installed() -> None:
    """Every adaptor and every step can be completed, with its settings."""
    definitions = pipeline_schema()["$defs"]
    for kind in (READER, WRITER):
        for name in adaptor_entry_points(kind).names:
            assert "adaptor" in definitions[f"{kind}.{name}"]["required"]
    assert set(definitions["StepConfig"]["properties"]) == set(KINDS)
    assert definitions["LogConfig"]["properties"]["segment_bytes"]["default"] == "1GiB"
    assert definitions["LogConfig"]["properties"]["segment_age"]["default"] == "1d"


def test_cases_have_a_schema() -> None:
    """A file of cases passes, one with a misspelt key does not."""
    schema = cases_schema()
    Draft202012Validator.check_schema(schema)
    case = {"name": "x", "input": {"data": {"a": 1}}, "output": [{"key": "k"}]}
    validator = Draft202012Validator(schema)
    assert validator.is_valid({"pipeline": "p.yaml", "cases": [case]})
    assert not validator.is_valid({"pipeline": "p.yaml", "cases": [case | {"outputs": []}]})
