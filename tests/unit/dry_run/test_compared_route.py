"""A route as its log has it, for a comparison."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from transporter.dry_run.compared_route import LoggedRoute
from transporter.errors import ConfigError, EnvironmentFault, UnknownName
from transporter.log.commit_log import CommitLog
from transporter.log.logged_reader import read_last_offset
from transporter.message import NOOP, Message, messages_to_batch
from transporter.offsets.offset_log import OffsetLog
from transporter.offsets.state import Range
from transporter.pipeline.config import load

if TYPE_CHECKING:
    from pathlib import Path


def logged_route(folder: Path, **keys: Any) -> LoggedRoute:
    """Return a route of a pipeline in *folder*."""
    document = {
        "log": {"dir": "log"},
        "readers": [{"name": "in", "adaptor": "file", "path": "in.jsonl"}],
        "routes": [{"name": "out", "writer": {"adaptor": "file", "path": "out"}, **keys}],
    }
    (folder / "p.yaml").write_text(json.dumps(document))
    pipeline = load(folder / "p.yaml", {})
    return LoggedRoute(pipeline, pipeline.routes[0])


def message(namespace: str, data: str) -> Message:
    """Return an entry."""
    return Message(namespace, data.encode(), b"k")


def append(folder: Path, *batches: list[Message]) -> None:
    """Append *batches* to the log."""
    with CommitLog.open(folder / "log") as log:
        for number, batch in enumerate(batches):
            log.append(messages_to_batch(batch), "in", str(number))


def test_entries_of_a_route(tmp_path: Path) -> None:
    """The filter and the steps apply, and an entry whose step fails is left out."""
    append(
        tmp_path,
        [message("a", '{"x":1}'), message("b", '{"x":2}'), message("a", '{"x":"no"}')],
        [message("a", '{"x":0}'), Message("in", None, None, NOOP), message("a", '{"x":5}')],
    )
    skip = {"only": {"field": "x", "operator": ">", "value": 0}}
    route = logged_route(tmp_path, namespace="^a$", steps=[skip])
    assert (route.has_steps, route.takes("a"), route.takes("ab")) == (True, True, False)
    parts = [(through, batch.offsets) for through, batch in route.read(0, 5)]
    assert [offset for _, offsets in parts for offset in offsets] == [0, 5]
    assert {through for through, _ in parts} == {2, 5}
    assert [batch.offsets for _, batch in route.read(5, 5)] == [[5]]
    assert [*route.read(6, 9)] == []
    assert not logged_route(tmp_path).has_steps


def test_progress_and_log(tmp_path: Path) -> None:
    """Progress, position and end are those on the disk, beside an engine or without one."""
    with pytest.raises(EnvironmentFault, match="no transporter log here"):
        logged_route(tmp_path)
    with CommitLog.open(tmp_path / "log") as log:
        route = logged_route(tmp_path)
        assert (route.is_running(), route.last_offset()) == (True, -1)
        with pytest.raises(UnknownName, match="no route of this name has run here"):
            route.progress()
        log.append(messages_to_batch([message("a", "1"), message("a", "2")]), "in", "here")
        assert (route.last_offset(), route.logged_reader("in").position) == (1, "here")
        assert route.log_id == log.log_id
    assert not route.is_running()
    assert read_last_offset(tmp_path / "log") == 1
    with OffsetLog(tmp_path / "log", "out") as offsets:
        offsets.settle(Range(0, 1), 1)
    assert route.progress().watermark == 1
    assert (route.is_whole, route.count_parked()) == (True, 0)
    assert read_last_offset(tmp_path / "nothing") == -1


def test_a_step_on_spark(tmp_path: Path) -> None:
    """Rows that only Spark can make are refused."""
    append(tmp_path, [message("a", "{}")])
    route = logged_route(tmp_path, steps=[{"sql": {"query": "SELECT * FROM entries"}}])
    with pytest.raises(ConfigError, match="route out has a sql step"):
        [*route.read(0, 0)]
