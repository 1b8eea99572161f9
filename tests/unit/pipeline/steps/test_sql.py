"""The ``sql`` step in a pipeline file: its two forms, and its mistakes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from jsonschema import Draft202012Validator

from transporter.pipeline.config import Pipeline, load
from transporter.pipeline.json_schema import pipeline_schema
from transporter.pipeline.problems import InvalidPipeline
from transporter.pipeline.steps.sql import SqlSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HEAD = """\
log: {dir: log}
readers: [{name: in, adaptor: file, path: in.jsonl}]
routes:
  - name: plain
    steps: [{omit: {fields: [card]}}]
    writer: {adaptor: file, path: plain.jsonl}
  - name: daily
"""
WRITER = "    writer: {adaptor: file, path: out.jsonl}\n"
STEP = "    steps:\n      - sql: SELECT * FROM entries\n"


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[..., Pipeline]:
    """Load a pipeline whose route ``daily`` is given from line 8 on."""

    def load_it(route: str) -> Pipeline:
        file = tmp_path / "p.yaml"
        file.write_text(HEAD + route)
        return load(file, {})

    return load_it


def told(loaded: Callable[..., Pipeline], route: str) -> str:
    """Return the only problem of the pipeline, with its line."""
    with pytest.raises(InvalidPipeline) as caught:
        loaded(route)
    (found,) = caught.value.problems
    return f"{found.line}: {found.problem}"


def test_both_forms_are_one(loaded: Callable[..., Pipeline]) -> None:
    """A query alone is the mapping with that query, and either makes a route of DataFrames."""
    text = SqlSettings.model_validate("SELECT * FROM entries")
    mapping = SqlSettings.model_validate({"query": "SELECT * FROM entries"})
    assert text == mapping
    assert (text.schema_, text.bytes_) == (None, False)
    plain, daily = loaded(STEP + WRITER).routes
    assert (plain.on_frames, daily.on_frames) == (False, True)


def test_a_spark_sink_makes_a_route_of_frames(loaded: Callable[..., Pipeline]) -> None:
    """A Spark sink alone, without a step, makes a route of DataFrames."""
    assert loaded("    writer: {adaptor: spark, path: daily}\n").routes[1].on_frames


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ("sql: SELECT 1", "9: routes[1].steps[0].sql does not read the table entries"),
        ("sql: {query: SELECT 1}", "9: routes[1].steps[0].sql.query does not read the table"),
        ("sql: {}", "9: routes[1].steps[0].sql.query is missing"),
        ("sql: ''", "9: routes[1].steps[0].sql"),
        (
            "sql: {query: SELECT * FROM entries, schema: a INT, bytes: true}",
            "9: routes[1].steps[0].sql takes schema or bytes, not both",
        ),
        ("sql: {query: SELECT * FROM entries, shema: a INT}", "9: unknown key 'shema'"),
        ("sql: 5", "9: routes[1].steps[0].sql must be a mapping"),
    ],
)
def test_mistakes_have_their_line(loaded: Callable[..., Pipeline], step: str, problem: str) -> None:
    """Each mistake is reported at its line before Spark is started."""
    assert told(loaded, f"    steps:\n      - {step}\n{WRITER}").startswith(problem)


@pytest.mark.parametrize("route", [STEP + WRITER, "    writer: {adaptor: spark, path: daily}\n"])
def test_one_in_flight_per_key_is_refused(loaded: Callable[..., Pipeline], route: str) -> None:
    """The option is refused where a slice is a DataFrame, because it means nothing there."""
    problem = told(loaded, f"{route}    max_in_flight_per_key: 1\n")
    line = (HEAD + route).count("\n") + 1
    assert problem.startswith(f"{line}: routes[1].max_in_flight_per_key is not for a route with")


def test_the_schema_takes_both_forms() -> None:
    """An editor accepts the query alone and the mapping, and nothing else."""
    step = pipeline_schema()["$defs"]["StepConfig"]
    validator = Draft202012Validator(step)
    query = "SELECT * FROM entries"
    for right in (query, {"query": query}, {"query": query, "schema": "a INT", "bytes": False}):
        assert [each.message for each in validator.iter_errors({"sql": right})] == []
    for wrong in (5, [], {}, {"query": query, "shema": "a INT"}, {"query": query, "bytes": 5}):
        assert not validator.is_valid({"sql": wrong})
