"""Inspects PromQL, and evaluates the alert rules that a scrape would set off."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import promql_parser as promql
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

RULES = Path(__file__).parents[2] / "ops" / "prometheus" / "transporter.rules.yaml"
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "==": operator.eq,
}
Vector = list[tuple[dict[str, str], float]]
Sample = tuple[str, dict[str, str], float]
"""A series' name, its labels and its value."""


def rules() -> list[dict[str, Any]]:
    """Return the alert rules we ship."""
    found = YAML(typ="safe", pure=True).load(RULES)
    return [rule for group in found["groups"] for rule in group["rules"]]


def selectors(expression: str) -> Iterator[Any]:
    """Yield every vector selector in *expression*."""
    yield from (
        each for each in _nodes(promql.parse(expression)) if _kind(each) == "VectorSelector"
    )


def grouped_by(expression: str) -> set[str]:
    """Return the labels that *expression* groups or matches by."""
    found: set[str] = set()
    for node in _nodes(promql.parse(expression)):
        modifier = getattr(node, "modifier", None)
        labels = getattr(modifier, "matching", modifier)
        found |= set(getattr(labels, "labels", None) or ())
    return found


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for name in ("expr", "lhs", "rhs", "vector_selector"):
        if (below := getattr(node, name, None)) is not None:
            yield from _nodes(below)
    for below in getattr(node, "args", None) or ():
        yield from _nodes(below)


def _kind(node: object) -> str:
    return type(node).__name__


def firing(scrape: str) -> dict[str, list[dict[str, str]]]:
    """Return the alerts that *scrape* sets off, each with the labels of its series.

    Only rules that look at one moment count, and their ``for`` is taken as passed.
    """
    samples = samples_of(scrape)
    found = {}
    for rule in rules():
        parsed = promql.parse(rule["expr"])
        if not any(_kind(each) in ("Call", "MatrixSelector") for each in _nodes(parsed)):
            vector = _evaluate(parsed, Moment(lambda _: samples))
            if vector:
                found[rule["alert"]] = [labels for labels, _ in vector]
    return found


def samples_of(scrape: str, **target: str) -> list[Sample]:
    """Return the samples of *scrape*, with the labels that Prometheus gives to its *target*."""
    return [
        (each.name, {**each.labels, **target}, each.value)
        for family in text_string_to_metric_families(scrape)
        for each in family.samples
    ]


def fires(alert: str, scraped: Callable[[int], list[Sample]], minute: int) -> list[dict[str, str]]:
    """Return the labels with which *alert* fires in this *minute*, its ``for`` included.

    *scraped* returns the samples of a minute: Prometheus scrapes, and evaluates its rules, once in
    each. A target that is not scraped any more, or does not answer, has no samples.
    """
    (rule,) = (each for each in rules() if each["alert"] == alert)
    parsed, waits = promql.parse(rule["expr"]), int(rule.get("for", "0m").removesuffix("m"))
    pending = [
        [labels for labels, _ in _evaluate(parsed, Moment(scraped, at))]
        for at in range(minute - waits, minute + 1)
    ]
    return [labels for labels in pending[-1] if all(labels in each for each in pending)]


class Moment(NamedTuple):
    """A minute, and the samples scraped in each."""

    scraped: Callable[[int], list[Sample]]
    minute: int = 0

    def samples(self, node: Any, back: int = 0) -> Vector:
        """Return the samples that a vector selector selects *back* minutes before."""
        return [
            (labels, value)
            for name, labels, value in self.scraped(self.minute - back - _minutes(node.offset))
            if name == node.name and all(_matches(each, labels) for each in _matchers(node))
        ]


def _minutes(time: timedelta | None) -> int:
    return int(time.total_seconds() // 60) if time is not None else 0


def _evaluate(node: Any, moment: Moment) -> Any:
    match _kind(node):
        case "NumberLiteral":
            return node.val
        case "ParenExpr":
            return _evaluate(node.expr, moment)
        case "VectorSelector":
            return moment.samples(node)
        case "Call":
            return _called(node, moment)
        case "AggregateExpr":
            assert str(node.op) == "count"
            keys = [
                _key(labels, sorted(node.modifier.labels))
                for labels, _ in _evaluate(node.expr, moment)
            ]
            return [(dict(key), float(keys.count(key))) for key in dict.fromkeys(keys)]
        case "BinaryExpr":
            left, right = _evaluate(node.lhs, moment), _evaluate(node.rhs, moment)
            matching = getattr(node.modifier, "matching", None)
            by = None if matching is None else sorted(matching.labels)
            return _combined(_operator(node), left, right, by)
    raise NotImplementedError(_kind(node))


def _called(node: Any, moment: Moment) -> Vector:
    (argument,) = node.args
    if node.func.name == "absent":
        return [] if _evaluate(argument, moment) else [({}, 1.0)]
    assert node.func.name == "last_over_time", node.func.name
    selector, newest = argument.vector_selector, {}
    for back in range(_minutes(argument.range)):
        for labels, value in moment.samples(selector, back):
            newest.setdefault(_key(labels, None), value)
    return [(dict(key), value) for key, value in newest.items()]


def _combined(sign: str, left: Any, right: Any, by: list[str] | None) -> Vector:
    if isinstance(left, float):
        assert sign == "*", sign
        return [(labels, left * value) for labels, value in right]
    if isinstance(right, float):
        return [(labels, value) for labels, value in left if _COMPARE[sign](value, right)]
    there = {_key(labels, by): value for labels, value in right}
    both = [(labels, value) for labels, value in left if _key(labels, by) in there]
    if sign in _COMPARE:
        return [
            (labels, value)
            for labels, value in both
            if _COMPARE[sign](value, there[_key(labels, by)])
        ]
    if sign == "and":
        return both
    if sign == "or":
        mine = {_key(labels, by) for labels, _ in left}
        return [*left, *(each for each in right if _key(each[0], by) not in mine)]
    assert sign == "/", sign
    return [(labels, value / there[_key(labels, by)]) for labels, value in both]


def _key(labels: dict[str, str], by: list[str] | None) -> tuple[tuple[str, str], ...]:
    """Return the labels that *labels* match by, all of them for ``None``."""
    return tuple(
        sorted((name, value) for name, value in labels.items() if by is None or name in by)
    )


def _operator(node: Any) -> str:
    return str(node.op).rpartition(".")[2].strip()


def _matchers(node: Any) -> list[Any]:
    return list(node.matchers.matchers)


def _matches(matcher: Any, labels: dict[str, str]) -> bool:
    assert str(matcher.op).endswith("Equal"), "only = is used in rules"
    return labels.get(matcher.name, "") == matcher.value
