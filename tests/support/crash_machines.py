"""Run lengths of this suite's state machines, and Hypothesis features that are off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

if TYPE_CHECKING:
    from hypothesis.stateful import RuleBasedStateMachine


def run_machine(
    machine: type[RuleBasedStateMachine], *, examples: int, steps: int, exhaustive: bool
) -> None:
    """Run *examples* lives of *machine*, each of *steps*, the same ones unless *exhaustive*."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=not exhaustive,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
