"""Pipelines of compose/transporter as pipeline files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from ruamel.yaml import YAML

from transporter.errors import ConfigError, EnvironmentFault
from transporter.pipeline.config import load
from transporter.scaffold.conversion import convert_file

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.scaffold.conversion.draft import Converted

COMMON = """\
var source = mongodb({
  "uri": "mongodb://reader:very-hidden-1@db/shop", // a comment
  "tail": true
})
var sink = elasticsearch({
  "uri": "https://writer:very-hidden-2@search:9200/orders",
})
t.Source("source", source, "/.*/").Save("sink", sink, "/.*/")
"""
COMMON_FILES = 't.Source(file(s)).Save(file({uri: "stdout://"}))'
FILES = 't.Source(file({uri: "file://in.jsonl"}))%s.Save(file({uri: "stdout://"}))'


def converted(folder: Path, text: str) -> tuple[Converted, dict[str, Any]]:
    """Convert a file. Return the result, and its values."""
    old = folder / "pipeline.js"
    old.write_text(text)
    found = convert_file(old)
    return found, YAML(typ="safe", pure=True).load(found.text)


def test_the_common_form(tmp_path: Path) -> None:
    """Variables, a source and a sink. What has no adaptor here waits for a decision."""
    found, values = converted(tmp_path, COMMON)
    (reader,), (route,) = values["readers"], values["routes"]
    assert (reader["name"], reader["adaptor"]) == ("source", "file")
    assert reader["path"] == "${SOURCE_FILE:?there is no reader mongodb; a file of JSON lines}"
    assert (route["name"], route["writer"]["adaptor"]) == ("sink", "http")
    assert route["writer"]["url"].startswith("${SINK_URL:?")
    assert route["writer"]["url"].endswith("}/_doc/{key}")
    assert "namespace" not in route
    assert [each.partition(": ")[0] for each in found.warnings] == [
        f"pipeline.js:{line}" for line in (8, 3, 6, 8)
    ]
    assert found.text.count("# TODO ") == len(found.warnings)
    assert "very-hidden" not in found.text + "".join(found.warnings)


def test_a_file_that_needs_no_decision_loads_at_once(tmp_path: Path) -> None:
    """Files become files, and standard output stays standard output."""
    found, _ = converted(tmp_path, FILES % "")
    new = tmp_path / "new.yaml"
    new.write_text(found.text)
    (route,) = load(new, {}).routes
    assert route.writer.settings["path"] == "-"


@pytest.mark.parametrize(
    ("function", "step"),
    [
        ('omit({fields: ["card.no", "a"]})', {"omit": {"fields": [r"card\.no", "a"]}}),
        ('pick({fields: ["a"]})', {"pick": {"fields": ["a"]}}),
        ('rename({field_map: {a: "b"}})', {"rename": {"fields": {"a": "b"}}}),
        ('remap({ns_map: {"a": "b"}})', {"remap": {"namespaces": {"a": "b"}}}),
        (
            'skip({field: "age", operator: ">=", match: 18})',
            {"only": {"field": "age", "operator": ">=", "value": 18}},
        ),
        ('opfilter({blacklist: ["delete"]})', {"opfilter": {"deny": ["delete"]}}),
        ('opfilter({whitelist: ["insert"]})', {"opfilter": {"allow": ["insert"]}}),
    ],
)
def test_functions_become_steps(tmp_path: Path, function: str, step: dict[str, Any]) -> None:
    """Each built-in function that changes messages has a step. ``skip`` kept what matched."""
    found, values = converted(tmp_path, FILES % f".Transform({function})")
    assert values["routes"][0]["steps"] == [step]
    assert len(found.warnings) == 1, "only that of the file's form"


def test_a_function_in_javascript_prevents_a_start(tmp_path: Path) -> None:
    """It becomes a step whose function is a variable, so no message passes untransformed."""
    found, values = converted(
        tmp_path, FILES % '.Transform("clean", goja({filename: "clean.js"}), "/^orders$/")'
    )
    (step,) = values["routes"][0]["steps"]
    assert step["python"]["function"].startswith("${TRANSFORM_1:?")
    assert step["python"]["namespace"] == "^orders$"
    new = tmp_path / "new.yaml"
    new.write_text(found.text)
    with pytest.raises(ConfigError, match="module:function that does the transform"):
        load(new, {})


@pytest.mark.parametrize(
    "function",
    [
        'omit({fields: ["a", 1, {}]})',
        "omit({fields: []})",
        "rename({field_map: {a: {}}})",
        'skip({field: "a", operator: "==", match: {b: 1}})',
        'opfilter({whitelist: "insert"})',
        'otto({filename: "a.js"})',
        "unknown()",
    ],
)
def test_a_function_that_cannot_be_converted_prevents_a_start(
    tmp_path: Path, function: str
) -> None:
    """Settings of another form are never dropped silently."""
    found, values = converted(tmp_path, FILES % f".Transform({function})")
    assert values["routes"][0]["steps"][0]["python"]["function"].startswith("${TRANSFORM_1:?")
    assert any("write it as a step" in each for each in found.warnings)


def test_names_stand_for_their_values(tmp_path: Path) -> None:
    """A value may be assigned to a name first, also one inside an object."""
    _, values = converted(
        tmp_path, 'let path = "file://in.jsonl"; var s = {uri: path}; ' + COMMON_FILES
    )
    assert values["readers"][0]["path"] == "in.jsonl"


def test_pretty_is_left_out(tmp_path: Path) -> None:
    """It only wrote to the program's log."""
    found, values = converted(tmp_path, FILES % ".Transform(pretty({spaces: 0}))")
    assert "steps" not in values["routes"][0]
    assert any("pretty" in each for each in found.warnings)


def test_several_sinks(tmp_path: Path) -> None:
    """Each sink is a route with the steps before it. A sink behind a sink does not overtake it."""
    _, values = converted(
        tmp_path,
        """
        const s = t.Source("in", file({uri: "file://in.jsonl"}), "/^orders/");
        s.Transform(omit({fields: ["a"]})).Save("one", file({uri: "file://one"}))
         .Save("two", file({uri: "file://two"}), "^orders");
        s.Save(file({uri: "file://three"}));
        """,
    )
    one, two, three = values["routes"]
    assert [each["name"] for each in (one, two, three)] == ["one", "two", "file"]
    assert [each.get("namespace") for each in (one, two, three)] == ["^orders"] * 3
    assert [each.get("after") for each in (one, two, three)] == [None, "one", None]
    assert [("steps" in each) for each in (one, two, three)] == [True, True, False]


def test_the_settings_of_the_program(tmp_path: Path) -> None:
    """Log folder, segment size and time limit are taken over, and the others named."""
    config = (
        't.Config({log_dir: "/data/log", max_segment_bytes: 1048576, write_timeout: "30s", '
        'compaction_interval: "1h"})\n'
    )
    found, values = converted(tmp_path, config + FILES % "")
    assert values["log"] == {"dir": "/data/log", "segment_bytes": 1048576}
    assert values["routes"][0]["slice_timeout"] == "30s"
    assert any("compaction_interval" in each for each in found.warnings)


@pytest.mark.parametrize(
    ("uri", "kept"),
    [
        ("postgres://shop@db:5432/shop", "postgres://shop@db:5432/shop"),
        ("${DATABASE_URL}", "${DATABASE_URL}"),
        ("postgres://${USER}:${PASS}@db/shop", "postgres://${USER}:${PASS}@db/shop"),
        ("postgres://shop:very-hidden@db/shop", "${SOURCE_DSN:?"),
        ("postgres://shop@db/shop?password=very-hidden", "${SOURCE_DSN:?"),
        ("postgres://shop:very@hidden@db/shop", "${SOURCE_DSN:?"),
    ],
)
def test_a_connection_string_is_kept_only_without_a_secret(
    tmp_path: Path, uri: str, kept: str
) -> None:
    """A password becomes a variable, a variable stays one, and the rest is kept."""
    found, values = converted(
        tmp_path,
        f't.Source(postgres({{uri: "{uri}"}})).Save("out", file({{uri: "stdout://"}}))',
    )
    assert values["readers"][0]["dsn"].startswith(kept)
    assert "hidden" not in found.text + "".join(found.warnings)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ('var a = mongodb({\n  "uri": "x"\n  "tail": true\n})', 2, "is not JavaScript"),
        ("t.Source(", 1, "is not JavaScript"),
        ("\nfunction f() {}", 2, "function declaration"),
        ("if (true) { t.Config({}) }", 1, "if statement"),
        ('var a = "x" + "y"', 1, "binary expression"),
        ("var a = `x${b}`", 1, "template string"),
        ("var a = file({uri: process.env.X})", 1, "member expression"),
        ("var {a} = b", 1, "variable declarator"),
        ("t.Source(gone).Save(gone)", 1, "gone is not assigned"),
        ("t.Sink(file({}))", 1, "Sink is not expected"),
        ("t.Source()", 1, "needs an adaptor"),
        ("t.Config()", 1, "needs an object"),
        ("t.Config({}, {})", 1, "needs an object"),
        ("file({})", 1, "builds no part"),
        ("var a = file({})", 0, "builds no pipeline"),
        ("t.Source(file({}))", 0, "there is no Save"),
        ("t.Source(file({}))\nt.Source(file({}))", 2, "second source"),
        ("", 0, "builds no pipeline"),
        (f"var a = {'[' * 100}{']' * 100}", 1, "nested more than"),
        (FILES % '.Transform(remap({ns_map: {a: "b"}}), "[")', 0, "no pipeline file may have"),
    ],
)
def test_the_rest_of_javascript_is_refused_by_its_line(
    tmp_path: Path, text: str, line: int, problem: str
) -> None:
    """Nothing is executed or guessed: the error names the file, the line and the construct."""
    with pytest.raises(ConfigError, match=problem) as caught:
        converted(tmp_path, text)
    assert caught.value.file == str(tmp_path / "pipeline.js")
    assert (caught.value.line or 0) == line


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    """The error names the line."""
    (tmp_path / "pipeline.js").write_bytes(b'\nvar a = "\xff"')
    with pytest.raises(ConfigError, match="not UTF-8") as caught:
        convert_file(tmp_path / "pipeline.js")
    assert caught.value.line == 2


@pytest.mark.parametrize("adaptor", ["file", "postgres", "elasticsearch"])
def test_an_address_is_a_text(tmp_path: Path, adaptor: str) -> None:
    """Anything else is refused, and not written in Python's notation."""
    with pytest.raises(ConfigError, match="uri must be a text"):
        converted(tmp_path, f't.Source(file({{}})).Save({adaptor}({{uri: ["hidden"]}}))')


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package to install."""
    monkeypatch.setitem(sys.modules, "tree_sitter_javascript", None)
    with pytest.raises(EnvironmentFault, match=r"transporter-engine\[migrate\]"):
        converted(tmp_path, COMMON)
