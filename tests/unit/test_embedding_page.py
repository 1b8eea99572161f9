"""The table of status fields and the FastAPI example of docs/embedding.md."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from transporter.engine.events import EngineStatus, ReaderStatus, RouteStatus, State

PAGE = (Path(__file__).parents[2] / "docs" / "embedding.md").read_text(encoding="utf-8")
OUT = RouteStatus("out", "file", State.RUNNING, 1, 0, 0, 0)
IN = ReaderStatus("in", "demo", State.RUNNING, 1)


def test_the_table_has_every_field() -> None:
    """The page lists the fields of each object, and no others."""
    table = PAGE.partition("### The fields of status()")[2].partition("\n\nA histogram")[0]
    found: dict[str, set[str]] = {}
    kind = ""
    for line in table.splitlines():
        cells = [each.strip() for each in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0] not in ("object", "---"):
            kind = cells[0] or kind
            found.setdefault(kind, set()).update(re.findall(r"`(\w+)`", cells[1]))
    both = found["reader and route"]
    assert found["status"] == {each.name for each in fields(EngineStatus)}
    assert both | found["reader"] == {each.name for each in fields(ReaderStatus)}
    assert both | found["route"] == {each.name for each in fields(RouteStatus)} | {"patience"}


class _FastAPI:
    def __init__(self, **_: Any) -> None:
        self.state = SimpleNamespace()

    def get(self, _path: str) -> Any:
        return lambda function: function


@pytest.mark.parametrize(
    ("error", "readers", "routes", "code"),
    [
        (None, [IN], [OUT], 200),
        (OSError(), [IN], [OUT], 503),
        (None, [IN], [RouteStatus("out", "file", State.STOPPED, 1, 0, 0, 0, problem="no")], 503),
        (None, [ReaderStatus("in", "demo", State.STOPPED, 1, problem="no")], [OUT], 503),
        (None, [IN], [RouteStatus("out", "file", State.RETRYING, 1, 0, 0, 0, problem="no")], 200),
    ],
    ids=["fine", "failed", "route stopped", "reader stopped", "retrying"],
)
def test_alive_is_red_when_a_part_waits_for_somebody(
    monkeypatch: pytest.MonkeyPatch,
    error: Exception | None,
    readers: list[ReaderStatus],
    routes: list[RouteStatus],
    code: int,
) -> None:
    """A stopped reader or route is as bad as a failed engine, and a sink that is away is not."""
    web = ModuleType("fastapi")
    web.FastAPI, web.Response = _FastAPI, SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fastapi", web)
    (example,) = re.findall(r"^```python\n(import asyncio.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, "docs/embedding.md", "exec"), names)  # noqa: S102 - the page's code is the test's subject
    status = EngineStatus("log", 0, 0, spark=True, readers=tuple(readers), routes=tuple(routes))
    names["app"].state.pipeline = SimpleNamespace(name="p", error=error, status=lambda: status)
    response = SimpleNamespace(status_code=200)
    answer = names["alive"](response)
    assert response.status_code == code
    assert answer["stopped"] == {
        each.name: "no" for each in (*readers, *routes) if each.state is State.STOPPED
    }
