"""``python -m storm``: run seeds, replay a plan, or cut a failing one down."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from storm.plan import Plan, draw
from storm.shrink import shrink
from storm.truth import Violation
from storm.world import World, leave_sockets

_TELLS = 50
"""Interval, in storms, between two progress lines."""


@dataclass(slots=True)
class Result:
    """The outcome of one storm. Its *problem* is empty when everything held."""

    plan: Plan
    acts: int
    problem: str = ""
    took: Counter[str] = field(default_factory=Counter)


def main() -> int:
    """Run the command line's request. Return 1 when something did not hold."""
    asked = _arguments()
    begun, results = time.monotonic(), list[Result]()
    plans = [Plan.load(each) for each in asked.file] or [
        draw(seed, asked.acts) for seed in range(asked.seed, asked.seed + asked.seeds)
    ]
    with ThreadPoolExecutor(asked.jobs) as pool:
        waiting = [pool.submit(_unless_late, each, begun + asked.seconds, asked) for each in plans]
        for done in as_completed(waiting):
            if (result := done.result()) is not None:
                results.append(result)
                _report(result, asked)
                if len(results) % _TELLS == 0:
                    _say(_summary(results, time.monotonic() - begun))
    _say(_summary(results, time.monotonic() - begun))
    spent: Counter[str] = sum((each.took for each in results), Counter())
    _say(", ".join(f"{name} {seconds:.1f} s" for name, seconds in spent.most_common(12)))
    return 1 if any(each.problem for each in results) else 0


def _summary(results: list[Result], took: float) -> str:
    acts, failed = sum(each.acts for each in results), sum(bool(each.problem) for each in results)
    rate = f"{took:.0f} s, {acts / took:.1f} acts a second"
    return f"{len(results)} storms, {acts} acts, {failed} failed, {rate}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="storm", description=__doc__)
    parser.add_argument("file", type=Path, nargs="*", help="plans, in place of seeds")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--acts", type=int, default=200, help="acts of each storm")
    parser.add_argument("--jobs", type=int, default=1, help="storms at once")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no storm after so many")
    parser.add_argument("--keep", type=Path, help="where plans and remains of failing storms go")
    parser.add_argument("--folder", type=Path, help="where all that a storm left goes")
    parser.add_argument("--without", action="append", default=[], help="drop acts that hold this")
    parser.add_argument("--shrink", action="store_true", help="cut what fails down, then keep it")
    return parser.parse_args()


def _unless_late(plan: Plan, deadline: float, asked: argparse.Namespace) -> Result | None:
    if time.monotonic() > deadline:
        return None
    plan.acts = [
        act for act in plan.acts if not any(text in json.dumps(act) for text in asked.without)
    ]
    return storm(plan, asked.folder, asked.keep)


def _report(result: Result, asked: argparse.Namespace) -> None:
    if not result.problem:
        return
    plan = result.plan
    _say(f"seed {plan.seed}, act {result.acts}: {result.problem}")
    if asked.shrink:
        plan = shrink(plan, result.problem, lambda each: storm(each).problem, _say)
    if asked.keep is not None:
        asked.keep.mkdir(parents=True, exist_ok=True)
        plan.save(asked.keep / f"seed-{plan.seed}.json")


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - for whoever runs it


def memory_folder() -> Path | None:
    """Return a folder in memory where there is one, because the cost of syncs is not under test."""
    folder = Path("/dev/shm")  # noqa: S108 - a storm makes a folder of its own in it
    return folder if os.access(folder, os.W_OK) else None


def storm(plan: Plan, keep: Path | None = None, failed: Path | None = None) -> Result:
    """Run *plan*. With *keep* copy everything it left there.

    With *failed* the remains of a storm that fails are copied into a folder there, named by its
    seed, because not each of them fails again when it is run again.
    """
    folder = Path(tempfile.mkdtemp(prefix="storm-", dir=memory_folder()))
    world = World(folder, plan)
    problem = ""
    try:
        world.run()
    except Violation as violation:
        problem = str(violation)
    except Exception:  # noqa: BLE001 - a mistake of the storm is a failure, too
        problem = f"the storm itself failed: {traceback.format_exc()}"
    if problem and failed is not None:
        keep = keep or failed / f"seed-{plan.seed}"
    if keep is not None:
        shutil.copytree(folder, keep, dirs_exist_ok=True, ignore=leave_sockets)
    shutil.rmtree(folder, ignore_errors=True)
    return Result(plan, world.done, problem, world.took)


if __name__ == "__main__":
    sys.exit(main())
