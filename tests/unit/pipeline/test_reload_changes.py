"""The changes of a pipeline file that a running engine takes up, refuses and shows."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import make_pipeline

from transporter.pipeline.adaptor_registry import find_function, forget_modules
from transporter.pipeline.config import load
from transporter.pipeline.log_location import route_lines
from transporter.pipeline.problems import InvalidPipeline
from transporter.pipeline.reload_changes import (
    changed_routes,
    describe_changes,
    reread,
    settings_diff,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transporter.pipeline.config import Pipeline

DOCUMENT = {
    "name": "orders",
    "log": {"dir": "log"},
    "readers": [{"name": "in", "adaptor": "postgres-outbox", "dsn": "${DSN}", "table": "t"}],
    "routes": [
        {
            "name": "a",
            "steps": [{"omit": {"fields": ["x"]}}],
            "writer": {"adaptor": "file", "path": "a"},
        },
        {"name": "b", "writer": {"adaptor": "file", "path": "b"}},
    ],
}
DSN = "postgresql://me:hunter2222@db/shop"


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """Return a pipeline of two routes, in a file."""
    lmdb = {"writer": {"adaptor": "lmdb", "path": "store"}}
    return make_pipeline(tmp_path, [], one=lmdb, two={"after": "one"})


def edit(pipeline: Pipeline, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the file of *pipeline*."""
    document = json.loads(pipeline.file.read_text())
    change(document)
    pipeline.file.write_text(json.dumps(document, indent=1))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: d.update(commit_interval="2s"), []),
        (lambda d: d.update(shutdown_timeout="2s"), []),
        (lambda d: d["log"].update(max_bytes="8GiB", on_full="stop-route"), []),
        (lambda d: d["log"].update(retention={"age": "9d"}), []),
        (lambda d: d["log"].update(compaction={"after": "9d"}), []),
        (lambda d: d["routes"].reverse(), []),
        (lambda d: d["routes"][0].update(steps=[{"omit": {"fields": ["a"]}}]), ["one"]),
        (lambda d: d["routes"][0].update(namespace="^x"), ["one"]),
        (lambda d: d["routes"][0].update(retry={"attempts": 9}), ["one"]),
        (lambda d: d["routes"][0].update(on_error="park"), ["one"]),
        (lambda d: d["routes"][0].update(park_limit={"entries": 3}), ["one"]),
        (lambda d: d["routes"][0].update(linger="3s"), ["one"]),
        (lambda d: d["routes"][0]["writer"].update(path="elsewhere"), ["one"]),
    ],
)
def test_what_may_change_is_taken_up(
    pipeline: Pipeline, change: Callable[[dict[str, Any]], object], told: list[str]
) -> None:
    """These settings change while the engine runs, and only the affected routes get new workers."""
    edit(pipeline, change)
    wanted = reread(pipeline, {})
    # Route two writes through code of the user's own, which is always taken up again.
    assert {each.name for each in changed_routes(pipeline, wanted)} == {*told, "two"}


@pytest.mark.parametrize(
    ("change", "key", "problem"),
    [
        (lambda d: d.update(name="other"), '"name": "other"', "name cannot change"),
        (lambda d: d["log"].update(dir="there"), '"dir"', "log.dir cannot change"),
        (lambda d: d["log"].update(segment_bytes="1MiB"), '"segment_bytes"', "log.segment_bytes"),
        (lambda d: d["log"].update(compression="none"), '"compression"', "log.compression"),
        (lambda d: d.update(spark={"master": "local[2]"}), '"spark"', "spark cannot change"),
        (lambda d: d["readers"][0].update(release="delivered"), '"readers"', "of reader 'in'"),
        (
            lambda d: d["readers"].__setitem__(0, {"name": "in", "adaptor": "file", "path": "x"}),
            '"readers"',
            "the adaptor of reader 'in'",
        ),
        (lambda d: d["routes"][1].pop("after"), '"two"', "'after' of route 'two'"),
    ],
)
def test_what_may_not_change_is_refused_with_its_line(
    pipeline: Pipeline, change: Callable[[dict[str, Any]], object], key: str, problem: str
) -> None:
    """The refusal stands at the line of the key, or of its parent, and has the remedy."""
    edit(pipeline, change)
    with pytest.raises(InvalidPipeline) as raised:
        reread(pipeline, {})
    first = raised.value.problems[0]
    assert problem in str(raised.value)
    assert "stop the engine and start it again" in first.problem
    lines = pipeline.file.read_text().splitlines()
    near = "\n".join(lines[max(0, first.line - 2) : first.line + 1])
    assert key in near


def test_a_file_that_is_wrong_is_refused_as_at_a_start(pipeline: Pipeline) -> None:
    """An unknown key stops a reload as it stops a start."""
    edit(pipeline, lambda document: document["routes"][0].update(retrry=1))
    with pytest.raises(InvalidPipeline, match="did you mean 'retry'"):
        reread(pipeline, {})


def test_the_lines_of_routes_need_no_variables(tmp_path: Path) -> None:
    """The routes of a file are listed without the secrets that it refers to."""
    path = tmp_path / "p.yaml"
    path.write_text("routes:\n  - name: a\n    dsn: ${NONE:?set it}\n  - writer: x\n    name: b\n")
    assert route_lines(path, {}) == {"a": 2, "b": 5}


def test_modules_beside_the_file_are_imported_anew_and_no_others(tmp_path: Path) -> None:
    """Modules in the file's folder are read again, and modules from anywhere else stay loaded."""
    code = tmp_path / "beside_module.py"
    code.write_text("def change(message):\n    return 1\n")
    (tmp_path / "json.py").write_text("")
    before = find_function("beside_module:change", tmp_path)
    code.write_text("def change(message):\n    return 'something else'\n")
    assert find_function("beside_module:change", tmp_path) is before
    forget_modules(tmp_path)
    try:
        assert find_function("beside_module:change", tmp_path)(None) == "something else"
        assert sys.modules["json"] is json
    finally:
        forget_modules(tmp_path)
        sys.path.remove(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "part", "told"),
    [
        (lambda d: d["readers"][0].update(rows=7), "readers", ["in"]),
        (lambda d: d["readers"][0].update(max_in_flight=7), "readers", ["in"]),
        (lambda d: d["routes"].pop(1), "removed", {"readers": [], "routes": ["two"]}),
        (
            lambda d: d["readers"][0].update(name="new"),
            "added",
            {"readers": ["new"], "routes": []},
        ),
        (
            lambda d: d["readers"][0].update(name="new"),
            "removed",
            {"readers": ["in"], "routes": []},
        ),
        (
            lambda d: d["routes"].append(d["routes"][0] | {"name": "new"}),
            "added",
            {"readers": [], "routes": ["new"]},
        ),
    ],
)
def test_readers_and_routes_change_come_and_go(
    pipeline: Pipeline, change: Callable[[dict[str, Any]], object], part: str, told: object
) -> None:
    """The changes of a reload are reported by kind and name, to the audit file and the operator."""
    edit(pipeline, change)
    assert describe_changes(pipeline, reread(pipeline, {}))[part] == told


def test_readers_of_an_adaptor_that_comes_with_us_stay_open(tmp_path: Path) -> None:
    """Only a reader with changed settings, or with the user's own code, is reopened."""
    (tmp_path / "in.jsonl").write_text("")
    pipeline = make_pipeline(tmp_path, [], one={})

    def a_file(document: dict[str, Any]) -> None:
        document["readers"] += [{"name": "file", "adaptor": "file", "path": "in.jsonl"}]

    edit(pipeline, a_file)
    both = reread(pipeline, {})
    edit(both, lambda document: document.update(commit_interval="3s"))
    assert describe_changes(both, reread(both, {}))["readers"] == ["in"]
    edit(both, lambda document: document["readers"][1].update(path="other.jsonl"))
    assert describe_changes(both, reread(both, {}))["readers"] == ["in", "file"]


def test_a_first_reader_that_takes_turns_gives_every_route_a_new_worker(tmp_path: Path) -> None:
    """All routes get new workers, because writers receive that name only when they open."""
    pipeline = make_pipeline(tmp_path, [], one={"writer": {"adaptor": "lmdb", "path": "store"}})
    assert describe_changes(pipeline, reread(pipeline, {}))["routes"] == []
    (tmp_path / "table.txt").write_text("")
    shared = {"name": "table", "adaptor": "table_tools:TableReader", "path": "table.txt"}
    edit(pipeline, lambda document: document["readers"].append(shared))
    assert describe_changes(pipeline, reread(pipeline, {}))["routes"] == ["one"]


def read(folder: Path, dsn: str = DSN, **changes: Any) -> Pipeline:
    """Return the pipeline of the document with *changes* at its top."""
    path = folder / "pipeline.yaml"
    path.write_text(json.dumps(DOCUMENT | changes))
    return load(path, {"DSN": dsn})


def changed(before: Pipeline, after: Pipeline) -> dict[str, tuple[Any, Any]]:
    """Return the differing settings with both values."""
    found = settings_diff(before, after)
    return {each["setting"]: (each["before"], each["after"]) for each in found}


def test_equal_files_do_not_differ(tmp_path: Path) -> None:
    """A file that was read twice differs in nothing, also if its lists are in another order."""
    before = read(tmp_path)
    assert changed(before, read(tmp_path)) == {}
    assert changed(before, read(tmp_path, routes=DOCUMENT["routes"][::-1])) == {}  # type: ignore[index]


def test_each_setting_has_its_path_and_both_values(tmp_path: Path) -> None:
    """A route is known by its name, an item of another list by its place."""
    before = read(tmp_path)
    one, two = json.loads(json.dumps(DOCUMENT["routes"]))
    one["steps"][0]["omit"]["fields"].append("y")
    two["retry"] = {"attempts": 9}
    after = read(tmp_path, routes=[two, one], commit_interval="2s")
    assert changed(before, after) == {
        "commit_interval": (None, "2s"),
        "routes.a.steps.0.omit.fields.1": (None, "y"),
        "routes.b.retry.attempts": (None, 9),
    }
    assert changed(after, before)["routes.b.retry.attempts"] == (9, None)


def test_secrets_of_neither_reading_are_shown(tmp_path: Path) -> None:
    """A changed password shows as a change, without the old value or the new one."""
    before = read(tmp_path)
    after = read(tmp_path, DSN.replace("hunter2222", "swordfish9"))
    assert changed(before, after) == {"readers.in.dsn": ("***", "***")}
    moved = read(tmp_path, "postgresql://me:hunter2222@other/shop")
    text = json.dumps(settings_diff(before, moved))
    assert "hunter2222" not in text
    assert "swordfish9" not in json.dumps(settings_diff(after, before))


@pytest.mark.parametrize(("before", "after"), [("abc", "xyz"), (1234, 5678)])
def test_a_value_under_a_secretive_name_is_never_shown(
    tmp_path: Path, before: object, after: object
) -> None:
    """A secret that is too short to be searched for is hidden by the name of its key."""
    one, other = read(tmp_path), read(tmp_path)
    one.written["routes"][0]["writer"]["password"] = before
    other.written["routes"][0]["writer"]["password"] = after
    assert changed(one, other) == {"routes.a.writer.password": ("***", "***")}


def test_one_is_not_true(tmp_path: Path) -> None:
    """Values of different types differ, though they count as equal in Python."""
    one, other = read(tmp_path), read(tmp_path)
    one.written["x"], other.written["x"] = 1, True
    assert changed(one, other) == {"x": (1, True)}
