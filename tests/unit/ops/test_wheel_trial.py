"""Conditions of ``make dist`` for a wheel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

WHOLE = (
    "transporter/__init__.py",
    "transporter/py.typed",
    "transporter_adaptors/__init__.py",
    "transporter_adaptors/py.typed",
    "pyspark_transporter/__init__.py",
    "transporter_engine-0.2.0.dist-info/METADATA",
    "transporter_engine-0.2.0.dist-info/licenses/LICENSE",
)


@pytest.fixture
def trial(script: Callable[[str], ModuleType]) -> Any:
    """Return the imported script."""
    return script("wheel_trial")


def test_a_whole_wheel_has_no_problem(trial: Any) -> None:
    """The three packages with their marks of types, and the licence, are all that is needed."""
    assert trial.contents_problems(list(WHOLE)) == []


@pytest.mark.parametrize(
    ("missing", "added", "problem"),
    [
        ("", "adaptors/kafka/reader.py", "adaptors is at the top of the wheel"),
        ("", "tests/test_it.py", "tests is at the top of the wheel"),
        ("pyspark_transporter/__init__.py", "", "pyspark_transporter is missing"),
        ("transporter/py.typed", "", "transporter/py.typed is missing"),
        (WHOLE[-1], "", "the LICENSE is missing"),
    ],
)
def test_a_wheel_with_wrong_contents_is_refused(
    trial: Any, missing: str, added: str, problem: str
) -> None:
    """A foreign top-level name, a missing package, mark of types or licence is a problem."""
    names = [each for each in WHOLE if each != missing] + ([added] if added else [])
    assert trial.contents_problems(names) == [problem]


def test_rows_count_for_each_route(trial: Any) -> None:
    """Routes that have delivered nothing yet, and a status without routes, have no rows."""
    routes = [{"name": "store", "delivered": 7}, {"name": "screen", "delivered": None}]
    assert trial.delivered_counts({"result": {"routes": routes}}) == {"store": 7, "screen": 0}
    assert trial.delivered_counts({"ok": False, "error": {}}) == {}
