"""Command ``transporter history``: its sparklines, its rates, and its refusals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from engine_tools import Events, SparklessHost, make_pipeline, until

from transporter.cli import app
from transporter.cli.history import sparkline
from transporter.control.history_rates import rates
from transporter.control.server import attach_control
from transporter.engine.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """Run an engine with its control socket, which has delivered two entries."""
    pipeline = make_pipeline(tmp_path, ["a 1", "a 2"], end=False, out={}, other={})
    made = Engine(pipeline, SparklessHost(), Events())
    attach_control(made, {})
    made.start()
    made.history.record(made.status(), 1_000.0)
    until(lambda: all(each.delivered == 2 for each in made.status().routes))
    made.history.record(made.status(), 1_005.0)
    yield made
    made.stop(0)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return the exit code and the output of ``transporter history``."""
    code = app.execute(["history", *arguments])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_the_history_is_a_table_and_json(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each count is a row with a sparkline, and --json has the points."""
    code, out, err = shown(capsys, str(tmp_path / "pipeline.yaml"))
    assert (code, err) == (0, "")
    heads = [line.split()[:2] for line in out.splitlines()]
    assert ["reader", "in"] in heads
    assert ["route", "other"] in heads
    assert "/s" in out
    assert "▁" in out
    code, out, _ = shown(capsys, str(tmp_path / "log"), "--route", "out", "--json")
    (series,) = json.loads(out)["result"]["series"]
    assert (series["kind"], series["name"]) == ("route", "out")
    assert series["delivered"][-1] == 2
    assert series["lag"][-1] == series["parked"][-1] == 0


def test_an_unknown_route_and_a_stopped_engine_are_named(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong name is an error of usage, and without an engine there is no history."""
    code, _, err = shown(capsys, str(tmp_path / "log"), "--route", "none")
    assert (code, "no history of a route 'none'" in err) == (2, True)
    engine.stop(0)
    code, _, err = shown(capsys, str(tmp_path / "log"))
    assert (code, "no engine runs on this log" in err) == (1, True)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], "    "),
        ([0, 0, 0, 0, 0, 0, 0, 0], "▁▁▁▁"),
        ([1, 0, 8, 1, None, None, 4, 0], "▂█ ▅"),
        ([5], "   █"),
        ([None] * 8, "    "),
        ([0.001, 1000, 0, 0], "  █▁"),
        ([9, 9, *[1] * 8], "████"),
    ],
)
def test_a_sparkline_shows_the_largest_of_each_part(
    values: list[float | None], expected: str
) -> None:
    """Zero is the lowest bar, nothing a space, and the newest value is on the right."""
    assert sparkline(values, points=8, width=4) == expected


def test_a_rate_needs_two_counts_that_grow() -> None:
    """There is no rate over a gap, over a count that began again, nor within one moment."""
    times = [0.0, 5.0, 10.0, 15.0, 20.0, 20.0]
    assert rates(times, [10, 20, None, 40, 5, 6]) == [2.0, None, None, None, None]
    assert rates([0.0, 4.0], [0, 10]) == [2.5]
    assert rates([], []) == []
