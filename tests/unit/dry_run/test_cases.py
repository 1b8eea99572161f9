"""Cases in a file, with the comparison of outputs and the report of differences."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from transporter.dry_run.cases import CaseResult, run_cases
from transporter.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

PIPELINE = """
readers: [{name: in, adaptor: file, path: in.jsonl}]
routes:
  - name: events
    namespace: ^orders
    steps:
      - omit: {fields: [card]}
      - rename: {fields: {total: amount}}
      - python: {function: "more:more"}
    writer: {adaptor: kafka, bootstrap_servers: "${KAFKA:?set KAFKA}"}
"""
MORE = """
from dataclasses import replace


def more(message):
    if b"twice" in (message.data or b""):
        return [message, replace(message, namespace="copies", key=b"copy")]
    if b"bytes" in (message.data or b""):
        return replace(message, data=b"\\xff", headers=(("n", b"1"), ("none", None)))
    return message
"""


@pytest.fixture(name="folder")
def _folder(folder: Path) -> Path:
    """Return a folder with a pipeline whose secret is not set."""
    (folder / "p.yaml").write_text(PIPELINE)
    (folder / "more.py").write_text(MORE)
    return folder


def judge(folder: Path, *cases: dict[str, Any]) -> list[CaseResult]:
    """Run *cases*, written as JSON, which is also YAML."""
    file = folder / "cases.yaml"
    named = [{"name": f"case {number}"} | case for number, case in enumerate(cases)]
    file.write_text(json.dumps({"pipeline": "p.yaml", "cases": named}, indent=1))
    return list(run_cases(file, {}))


def order(data: Any, **fields: Any) -> dict[str, Any]:
    """Return a message that the route accepts."""
    return {"namespace": "orders", "data": data, **fields}


PASSING = [
    {"input": order({"total": 1}), "output": {"data": {"amount": 1}}},
    {"input": order('{"total": 1.10}'), "output": {"data": '{"amount": 1.10}'}},
    {"input": order('{"b":1,"a":2}'), "output": {"data": {"a": 2, "b": 1}}},
    {"input": order({"card": 1}), "output": [{"data": {}, "namespace": "orders", "op": "insert"}]},
    {"input": order(None), "output": {"data": None}},
    {"input": {"namespace": "users", "data": "x"}, "skipped": True},
    {"input": {"namespace": "users", "data": "x"}, "output": []},
    {
        "input": [order("{}", key="a"), order('{"x": "twice"}', key="b")],
        "output": [{"key": "a"}, {"key": "b"}, {"key": "copy", "namespace": "copies"}],
    },
    {
        "input": order('"bytes"', content_type="text/plain"),
        "output": {"base64": "/w==", "headers": {"n": "1", "none": None}},
    },
    {"input": order('{"card": '), "error": "not a JSON object"},
    {
        "input": [order({"total": 1}), order('{"total": '), order({"total": 3})],
        "error": "not a JSON object",
        "output": [{"data": {"amount": 1}}, {"data": {"amount": 3}}],
    },
]


@pytest.mark.parametrize("case", PASSING, ids=json.dumps)
def test_what_is_as_expected_passes(folder: Path, case: dict[str, Any]) -> None:
    """The named fields are compared, documents as JSON, texts and bytes exactly."""
    (verdict,) = judge(folder, case)
    assert verdict.problems == ()
    assert verdict.ok


FAILING = [
    ({"input": order({"total": 1}), "output": {"data": {"amount": 2}}}, '-     "amount": 2'),
    ({"input": order({"total": 1}), "output": {"data": {"amount": 2}}}, '+     "amount": 1'),
    ({"input": order({"total": 1}), "output": {"data": {"amount": True}}}, '+     "amount": 1'),
    ({"input": order('{"total": 1.10}'), "output": {"data": '{"amount": 1.1}'}}, "- "),
    ({"input": order("{}"), "skipped": True}, "expected 0 messages (-), got 1 (+):"),
    ({"input": order("{}"), "output": [{}, {}]}, "expected 2 messages (-), got 1 (+):"),
    ({"input": order("{}", key="a"), "output": {"key": "b"}}, '-   "key": "b"'),
    ({"input": order("{}"), "error": "broken"}, "nothing failed, but"),
    ({"input": order('{"total": '), "error": "broken"}, "input 0 failed: "),
    ({"input": [order("{}"), order('{"total": ')], "output": [{}]}, "input 1 failed: "),
    ({"input": order('"bytes"', content_type=None), "output": {"base64": "/g=="}}, '+   "base64"'),
    ({"input": order('{"twice": 1}'), "output": [{}]}, '+   "namespace": "copies"'),
    ({"input": order("{}"), "output": {"row": {"a": 1}}}, '+   "namespace": "orders"'),
]


@pytest.mark.parametrize(("case", "told"), FAILING)
def test_what_differs_is_told(folder: Path, case: dict[str, Any], told: str) -> None:
    """A case fails with the lines that differ, and its place in the file."""
    (verdict,) = judge(folder, case)
    assert any(line.startswith(told) for line in verdict.problems), verdict.problems
    assert verdict.file == str(folder / "cases.yaml")
    assert verdict.line == 4


@pytest.mark.parametrize(
    ("case", "line", "told"),
    [
        ({"input": order("{}"), "skiped": True}, 10, "did you mean 'skipped'?"),
        ({"input": order("{}")}, 4, "has no expected outcome"),
        ({"input": order("{}"), "skipped": True, "error": "x"}, 4, "has skipped"),
        ({"input": [], "skipped": True}, 6, "at least one"),
        ({"input": [{"op": "upsert"}], "skipped": True}, 8, "must be 'insert'"),
        ({"input": {"data": 1, "base64": "AA=="}, "skipped": True}, 6, "has data and base64"),
        ({"input": {"timestamp": 2**63}, "skipped": True}, 6, "must be less than"),
        ({"input": {"namespace": "\ud800"}, "skipped": True}, 6, "an unpaired surrogate"),
        ({"input": {"headers": {"\ud800": "x"}}, "skipped": True}, 6, "an unpaired surrogate"),
        ({"input": [{"base64": "A"}], "skipped": True}, 8, "is not base64"),
        ({"input": {"row": {}}, "skipped": True}, 6, "unknown key 'row'"),
        ({"input": {}, "output": {"row": {}, "key": "a"}}, 7, "has a row and keys of a message"),
        ({"input": order("{}"), "skipped": True, "route": "event"}, 11, "did you mean 'events'?"),
    ],
)
def test_a_wrong_file_is_told_with_its_line(
    folder: Path, case: dict[str, Any], line: int, told: str
) -> None:
    """An invalid case is an error of the file, with line and reason."""
    with pytest.raises(ConfigError, match=told.replace("?", r"\?")) as caught:
        judge(folder, case)
    assert caught.value.file == str(folder / "cases.yaml")
    assert caught.value.line == line


def test_a_wrong_step_is_told_with_its_line(folder: Path) -> None:
    """A mistake in the pipeline's steps is reported as by 'check'."""
    (folder / "p.yaml").write_text(PIPELINE.replace("omit", "omti"))
    with pytest.raises(ConfigError, match="there is no step 'omti'") as caught:
        judge(folder, {"input": order("{}"), "skipped": True})
    assert (caught.value.file, caught.value.line) == (str(folder / "p.yaml"), 7)


def test_of_several_routes_one_must_be_named(folder: Path) -> None:
    """With several routes a case must name its route."""
    writer = "{adaptor: file, path: x}"
    (folder / "p.yaml").write_text(
        "routes:\n"
        f"  - {{name: one, writer: {writer}}}\n"
        f"  - {{name: two, namespace: ^none, writer: {writer}}}\n"
    )
    with pytest.raises(ConfigError, match=r"name one of the routes \(one, two\)"):
        judge(folder, {"input": order("{}"), "skipped": True})
    one, two = judge(
        folder,
        {"input": order("{}"), "output": {"data": "{}"}, "route": "one"},
        {"input": order("{}"), "skipped": True, "route": "two"},
    )
    assert one.ok
    assert two.ok
