"""The table of metrics, with the docs, dashboard and alert rules derived from it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import promql_tools
import pytest

from transporter.adaptor import Gauge
from transporter.engine.events import EngineStatus, ReaderStatus, RouteStatus, State
from transporter.observe.metric_table import METRICS, PIPELINE
from transporter.observe.samples import EventCounts, LagAge, readings
from transporter.observe.span_export import SpanCounts

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
DASHBOARD = ROOT / "ops" / "grafana" / "transporter.json"
TABLE = {metric.name: metric for metric in METRICS}
VALUES = {"state": {state.value for state in State}, "action": {"parked", "skipped"}}
"""The words that a label may hold, where these come from the code."""
TARGET = {"job", "instance"}
"""The labels that Prometheus itself adds to each series, with ``up`` as its own series."""
MEASURED: dict[Gauge, float] = dict.fromkeys(get_args(Gauge), 7.0)
"""All that a reader may measure."""
STATUS = EngineStatus(
    directory="log",
    last=9,
    size=100,
    spark=True,
    readers=(ReaderStatus("in", "demo", State.RUNNING, 3, measured=MEASURED),),
    routes=(RouteStatus("out", "lmdb", State.RUNNING, 2, 1, 5, 4),),
    used=50,
    max_bytes=200,
)


def test_names_tell_the_kind_and_the_unit() -> None:
    """A counter ends with _total, no other metric does, and base units are in the name."""
    for metric in METRICS:
        assert re.fullmatch(r"transporter_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        if metric.unit in ("seconds", "bytes", "entries"):
            assert metric.unit in metric.name, metric.name
        assert metric.help, metric.name
        assert PIPELINE not in metric.labels
    assert len(TABLE) == len(METRICS)


def test_every_metric_is_read_and_nothing_else() -> None:
    """The readings name each metric of the table, with as many labels as it has."""
    found = list(
        readings(
            STATUS,
            EventCounts(lambda *_, **__: None),
            lambda _: LagAge(2, 1),
            ready=True,
            version="1",
            spans=SpanCounts(3, 4),
        )
    )
    assert {name for name, _, _ in found} == set(TABLE)
    for name, labels, _ in found:
        assert len(labels) == len(TABLE[name].labels), name
    assert len({(name, labels) for name, labels, _ in found}) == len(found)


def test_an_unknown_age_and_no_budget_are_no_readings() -> None:
    """An unknown value is left out rather than shown as 0."""
    status = EngineStatus("log", 9, 100, spark=True, readers=(), routes=STATUS.routes)
    found = readings(
        status, EventCounts(lambda *_, **__: None), lambda _: None, ready=True, version="1"
    )
    names = {name for name, _, _ in found}
    assert not names & {"transporter_route_lag_seconds", "transporter_log_budget_bytes"}


def test_what_a_reader_has_not_measured_is_no_reading() -> None:
    """A reader that is away has no reading for the backlog at its source."""
    status = replace(STATUS, readers=(replace(STATUS.readers[0], measured={}),))
    found = readings(
        status, EventCounts(lambda *_, **__: None), lambda _: None, ready=True, version="1"
    )
    assert not [name for name, _, _ in found if name.startswith("transporter_source_")]


def test_the_docs_have_a_row_for_each_metric() -> None:
    """docs/metrics.md has a row for each metric of the table."""
    rows = []
    for metric in METRICS:
        labels = ", ".join(f"`{each}`" for each in metric.labels)
        rows.append(
            f"| `{metric.name}` | {metric.kind} | {labels} | {metric.unit} | {metric.help} |"
        )
    text = (ROOT / "docs" / "metrics.md").read_text()
    assert [line for line in text.splitlines() if line.startswith("| `transporter_")] == rows, (
        "the table in docs/metrics.md should read:\n" + "\n".join(rows)
    )


def test_the_docs_have_a_section_for_each_alert() -> None:
    """docs/metrics.md names each alert."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    named = set(re.findall(r"^\| `(Transporter\w+)`", text, re.MULTILINE))
    assert named == {rule["alert"] for rule in promql_tools.rules()}


def expressions() -> list[tuple[str, str]]:
    """Return every shipped PromQL expression with its place."""
    found = [(rule["alert"], rule["expr"]) for rule in promql_tools.rules()]
    dashboard = json.loads(DASHBOARD.read_text())
    found += [
        (panel["title"], target["expr"].replace("$__rate_interval", "5m"))
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]
    definitions = [
        (each["name"], re.fullmatch(r"label_values\((.*), \w+\)", each.get("definition", "")))
        for each in dashboard["templating"]["list"]
    ]
    return found + [(name, inside[1]) for name, inside in definitions if inside]


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_every_expression_names_what_exists(where: str, expression: str) -> None:
    """Alerts and panels name metrics of the table and labels that these have."""
    known: set[str] = set()
    for selector in promql_tools.selectors(expression):
        if selector.name == "up":
            continue
        metric = metric_of(selector.name)
        known |= {*metric.labels, PIPELINE, *(("le",) if metric.kind == "histogram" else ())}
        for matcher in selector.matchers.matchers:
            assert matcher.name in (*metric.labels, PIPELINE), f"{where}: {selector.name}"
            if matcher.name in VALUES and "$" not in matcher.value:
                assert matcher.value in VALUES[matcher.name], f"{where}: {matcher.value}"
    assert promql_tools.grouped_by(expression) <= known | TARGET, where


def metric_of(series: str) -> Any:
    """Return the metric that *series* belongs to, or fail where there is none."""
    if series in TABLE:
        assert TABLE[series].kind != "histogram", f"{series} alone is no series"
        return TABLE[series]
    base = re.sub("_(bucket|sum|count)$", "", series)
    assert base in TABLE, f"there is no metric {series}"
    assert TABLE[base].kind == "histogram", f"{base} has no buckets"
    return TABLE[base]


@pytest.mark.parametrize(
    "wrong",
    [
        "transporter_nothing > 1",
        "transporter_ready{route='x'}",
        "sum by (shard) (transporter_ready)",
    ],
)
def test_a_wrong_expression_would_be_found(wrong: str) -> None:
    """The check above refuses an unknown metric, label or grouping."""
    with pytest.raises(AssertionError):
        test_every_expression_names_what_exists("here", wrong)


def test_every_metric_is_shown_on_the_dashboard() -> None:
    """Every metric is shown on the dashboard."""
    shown = {
        metric_of(selector.name).name
        for _, expression in expressions()
        for selector in promql_tools.selectors(expression)
        if selector.name != "up"
    }
    assert shown == set(TABLE)


def test_counters_are_only_asked_for_their_growth() -> None:
    """No alert or panel compares a counter itself, which starts at 0 with every engine."""
    for where, expression in expressions():
        for name, metric in TABLE.items():
            if metric.kind == "counter" and name in expression:
                assert re.search(rf"(rate|increase)\({name}[^)]*\[", expression), where


def test_alert_rules_are_whole() -> None:
    """Each alert has a severity, a problem and an action, and its placeholders are labels."""
    for rule in promql_tools.rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "action"}
        assert re.fullmatch(r"\d+m", rule.get("for", "0m"))
        used = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        assert used <= set(labels_of(rule["expr"])), rule["alert"]


def labels_of(expression: str) -> Iterator[str]:
    """Yield the labels that the series of *expression* have."""
    if grouped := promql_tools.grouped_by(expression):
        yield from grouped
        return
    for selector in promql_tools.selectors(expression):
        yield from (PIPELINE, *metric_of(selector.name).labels)


def test_panels_do_not_overlap() -> None:
    """Every panel of the dashboard has its own place and number."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert all(one != other for one, other in pairwise(sorted(taken)))
    assert max(x for x, _ in taken) < 24
