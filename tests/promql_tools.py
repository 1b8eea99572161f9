"""Looks into PromQL, and says which alert rules a scrape would set off."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import promql_parser as promql
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RULES = Path(__file__).parents[1] / "ops" / "prometheus" / "transporter.rules.yaml"
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "==": operator.eq,
}
Vector = list[tuple[dict[str, str], float]]


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

    Of the rules that look at one moment only, and as if ``for`` had passed.
    """
    samples = [
        (each.name, each.labels, each.value)
        for family in text_string_to_metric_families(scrape)
        for each in family.samples
    ]
    found = {}
    for rule in rules():
        parsed = promql.parse(rule["expr"])
        if not any(_kind(each) in ("Call", "MatrixSelector") for each in _nodes(parsed)):
            vector = _evaluate(parsed, samples)
            if vector:
                found[rule["alert"]] = [labels for labels, _ in vector]
    return found


def _evaluate(node: Any, samples: list[tuple[str, dict[str, str], float]]) -> Any:
    match _kind(node):
        case "NumberLiteral":
            return node.val
        case "ParenExpr":
            return _evaluate(node.expr, samples)
        case "VectorSelector":
            return [
                (labels, value)
                for name, labels, value in samples
                if name == node.name and all(_matches(each, labels) for each in _matchers(node))
            ]
        case "BinaryExpr":
            left, right = _evaluate(node.lhs, samples), _evaluate(node.rhs, samples)
            return _combined(_operator(node), left, right, sorted(grouped_by(node.prettify())))
    raise NotImplementedError(_kind(node))


def _combined(sign: str, left: Vector, right: Any, by: list[str]) -> Vector:
    if sign in _COMPARE:
        return [(labels, value) for labels, value in left if _COMPARE[sign](value, right)]
    there = {_key(labels, by): value for labels, value in right}
    both = [(labels, value) for labels, value in left if _key(labels, by) in there]
    if sign == "and":
        return both
    assert sign == "/", sign
    return [(labels, value / there[_key(labels, by)]) for labels, value in both]


def _key(labels: dict[str, str], by: list[str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in labels.items() if not by or name in by))


def _operator(node: Any) -> str:
    return str(node.op).rpartition(".")[2].strip()


def _matchers(node: Any) -> list[Any]:
    return list(node.matchers.matchers)


def _matches(matcher: Any, labels: dict[str, str]) -> bool:
    assert str(matcher.op).endswith("Equal"), "only = is used in rules"
    return labels.get(matcher.name, "") == matcher.value
