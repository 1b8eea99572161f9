"""Differences of two readings of a pipeline file, and the secrets that they must not show."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from transporter.pipeline.config import load
from transporter.pipeline.settings_diff import settings_diff

if TYPE_CHECKING:
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
