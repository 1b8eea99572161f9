"""Reduction of a failing storm to the fewest acts that still fail in the same way."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from storm.plan import Act, Plan

TRIES = 3
"""Runs after which a list of acts counts as one that does not fail, because threads differ."""


def kind_of(problem: str) -> str:
    """Return the common part of violations of one kind: their words, without numbers."""
    return " ".join(re.sub(r"[^a-z ]", " ", re.sub(r"\b\w*\d\w*\b", "", problem.lower())).split())[
        :40
    ]


def shrink(
    plan: Plan, problem: str, run: Callable[[Plan], str], tell: Callable[[str], None]
) -> Plan:
    """Return *plan* with as few acts as still end in a problem of the same kind.

    Delta debugging (Zeller and Hildebrandt, 2002): ever smaller parts of the acts are left out, for
    as long as the rest still fails.
    """
    wanted = kind_of(problem)

    def fails(acts: list[Act]) -> bool:
        candidate = replace(plan, acts=acts)
        return any(kind_of(run(candidate)) == wanted for _ in range(TRIES))

    acts, parts = list(plan.acts), 2
    while len(acts) > 1:
        size = -(-len(acts) // parts)
        rest = ([*acts[:at], *acts[at + size :]] for at in range(0, len(acts), size))
        found = next((each for each in rest if fails(each)), None)
        if found is not None:
            acts, parts = found, max(parts - 1, 2)
            tell(f"{len(acts)} acts still fail")
        elif size == 1:
            break
        else:
            parts = min(2 * parts, len(acts))
    return replace(plan, acts=acts)
