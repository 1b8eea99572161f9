"""Namespace filters."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from transporter.pipeline.namespace_filter import NamespaceFilter


@pytest.mark.parametrize(
    ("pattern", "taken"),
    [
        (".*", [True, True, True, True]),
        ("", [True, True, True, True]),
        ("orders", [True, True, True, False]),
        (r"^orders\.", [True, True, False, False]),
        (r"^orders\.audit$", [False, True, False, False]),
        ("(?i)^ÜBER", [False, False, False, True]),
        ("^$", [False, False, False, False]),
    ],
)
def test_mask_searches(pattern: str, taken: list[bool]) -> None:
    """A pattern may match anywhere in a namespace unless it is anchored."""
    column = pa.array(["orders.new", "orders.audit", "old_orders", "über"])
    assert NamespaceFilter(pattern).mask(column).to_pylist() == taken


@pytest.mark.parametrize("pattern", [".*", "^a$", "^b$"])
@pytest.mark.parametrize("names", [[], ["a"], ["a", "a", "a"], ["a", "b", "a"], ["b", "a"]])
def test_shortcuts_agree_with_matching_each(pattern: str, names: list[str]) -> None:
    """The shortcut for a batch of a single namespace agrees with matching every row."""
    mask = NamespaceFilter(pattern).mask(pa.array(names, type=pa.string()))
    assert isinstance(mask, pa.BooleanArray)
    assert mask.to_pylist() == [pattern in (".*", f"^{name}$") for name in names]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a(b", r"missing \)"),
        ("(?=a)", "invalid perl operator"),
        ("a**", "bad repetition operator"),
        ("((a{999}){999}){999}", "repetition"),
    ],
)
def test_refuses_what_re2_cannot_read(pattern: str, reason: str) -> None:
    """A bad pattern is refused at once, with RE2's reason and without the pattern."""
    with pytest.raises(ValueError, match=reason) as caught:
        NamespaceFilter(pattern)
    assert pattern not in str(caught.value)


def test_survives_pickling() -> None:
    """A filter travels to workers."""
    assert pickle.loads(pickle.dumps(NamespaceFilter("^a"))) == NamespaceFilter("^a")  # noqa: S301 - our own
