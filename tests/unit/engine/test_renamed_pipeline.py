"""Names that change between two starts: a route's, a pipeline's, or its log's."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import Events, SparklessHost, make_pipeline, run_to_end
from root_tools import need_root

from transporter.engine.engine import Engine
from transporter.errors import ConfigError
from transporter.log.commit_log import CommitLog
from transporter.log.pipeline_record import PIPELINE
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import declared_routes, rename_route
from transporter.pipeline.config import load

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.pipeline.config import Pipeline

LINES = ["a 0", "a 1", "a 2"]


def changed(pipeline: Pipeline, **keys: Any) -> Pipeline:
    """Return the pipeline of the same file, with other *keys*. ``None`` removes one."""
    document = json.loads(pipeline.file.read_text()) | keys
    kept = {key: value for key, value in document.items() if value is not None}
    pipeline.file.write_text(json.dumps(kept))
    return load(pipeline.file, {})


def renamed(pipeline: Pipeline, name: str, **keys: Any) -> Pipeline:
    """Return the pipeline with its route called *name*."""
    (route,) = json.loads(pipeline.file.read_text())["routes"]
    return changed(pipeline, routes=[{**route, **keys, "name": name}])


def test_a_renamed_route_delivers_nothing_again(tmp_path: Path) -> None:
    """A renamed route is refused undeclared, and the suggested command keeps its position."""
    before = make_pipeline(tmp_path, LINES, out={})
    run_to_end(before)
    after = renamed(before, "sink")

    with pytest.raises(ConfigError, match=r"sink is new .* does not declare: out\. If") as told:
        Engine(after, SparklessHost(), Events())
    assert f"transporter offsets rename {after.file} out sink'" in str(told.value)
    assert declared_routes(before.log.dir) == ["out"]

    rename_route(before.log.dir, "out", "sink")
    events = Events()
    run_to_end(after, events)
    assert events.named("route-begins") == []


def test_a_route_that_says_where_it_starts_is_meant_to_be_new(tmp_path: Path) -> None:
    """A route with an explicit start counts as new, also with the default start."""
    before = make_pipeline(tmp_path, LINES, out={})
    run_to_end(before)
    events = Events()
    run_to_end(renamed(before, "sink", start="earliest"), events)
    assert [each["offset"] for each in events.named("route-begins")] == [0]
    assert [each["route"] for each in events.named("offset-log-unused")] == ["out"]


def test_a_pipeline_that_gets_another_name_in_the_same_log_is_told(tmp_path: Path) -> None:
    """A renamed pipeline on the same log goes on, and the change is reported."""
    pipeline = make_pipeline(tmp_path, LINES, out={})
    first, second, third = Events(), Events(), Events()
    run_to_end(changed(pipeline, name="shop"), first)
    run_to_end(changed(pipeline, name="store"), second)
    run_to_end(load(pipeline.file, {}), third)
    assert first.named("pipeline-renamed") == third.named("pipeline-renamed") == []
    (told,) = second.named("pipeline-renamed")
    assert (told["before"], told["name"]) == ("shop", "store")


def test_a_log_that_a_change_of_name_leaves_behind_is_named(tmp_path: Path) -> None:
    """A log left behind by a rename is reported while a route of it lacks entries."""
    shop = changed(make_pipeline(tmp_path, LINES, out={}), name="shop", log=None)
    other = tmp_path / "other.yaml"
    run_to_end(shop)
    left_in = shop.log.dir
    lagging(left_in, 2)

    store, events = changed(shop, name="store"), Events()
    other.write_text(store.file.read_text().replace('"store"', '"elsewhere"'))
    run_to_end(store, events)
    (told,) = events.named("log-left-behind")
    assert (told["log"], told["name"], told["undelivered"]) == (str(left_in), "shop", 2)

    events = Events()
    run_to_end(load(other, {}), events)
    assert events.named("log-left-behind") == []


def lagging(directory: Path, count: int) -> None:
    """Make the route ``out`` lack the newest *count* offsets of the log in *directory*."""
    with CommitLog.open(directory) as log:
        log.append(messages_to_batch([Message("more", b"%d" % n) for n in range(count)]), "in", "x")


@pytest.mark.parametrize("found", ["nonsense", '{"name": 1, "file": []}', "[" * 5_000, "{}"])
def test_a_record_that_cannot_be_read_counts_as_none(tmp_path: Path, found: str) -> None:
    """An unreadable record counts as absent and is written again, because it is only a hint."""
    pipeline = make_pipeline(tmp_path, LINES, out={})
    run_to_end(pipeline)
    (pipeline.log.dir / PIPELINE).write_text(found)
    events = Events()
    run_to_end(pipeline, events)
    assert events.named("pipeline-renamed") == []
    assert json.loads((pipeline.log.dir / PIPELINE).read_text())["file"] == str(pipeline.file)


def test_what_others_put_beside_a_log_is_not_looked_at(tmp_path: Path) -> None:
    """Foreign files beside a log are not read, because a pipe would block the start."""
    need_root("only root gives files to others")
    beside = tmp_path / "theirs"
    beside.mkdir()
    os.mkfifo(beside / PIPELINE)
    os.chown(beside, 65534, 65534)
    run_to_end(make_pipeline(tmp_path, LINES, out={}))
