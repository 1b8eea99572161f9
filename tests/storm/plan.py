"""Plans of storms: a pipeline and a list of acts, drawn from one seed, as plain JSON values.

An act stands for itself: one that makes no sense where it comes does nothing. A list from which
others were taken out is therefore a plan, too.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Act = list[Any]
"""A name, its settings, and the milliseconds to wait behind it."""

SEGMENT: Final = 64 << 10
FILTERS: Final = (".*", ".*", "^a", "x$", "^b\\.y$")

WEIGHTS: Final[dict[str, float]] = {
    "produce": 45,
    "wait": 3,
    "sink_fault": 12,
    "sink_heal": 9,
    "source_fault": 2,
    "source_heal": 2,
    "elect": 4,
    "pause": 4,
    "resume": 6,
    "step": 2,
    "reader_pause": 1.5,
    "reader_resume": 3,
    "reader_restart": 1.5,
    "reader_leave": 1,
    "route_leave": 1,
    "come_back": 2,
    "ack": 5,
    "replay": 7,
    "dry_replay": 1.5,
    "cancel_replay": 1,
    "park_retry": 6,
    "park_skip": 1.5,
    "reload": 2.5,
    "reload_file": 0.5,
    "status": 4,
    "look": 4,
    "compact": 1,
    "export": 0.7,
    "verify": 0.7,
    "forget": 0.7,
    "clock": 1,
    "disk_fault": 3,
    "disk_heal": 3,
    "stop": 2,
    "stop_engine_hung": 0.4,
    "kill": 3,
    "power_cut": 2.5,
    "backup": 1.5,
    "restore": 1,
    "remove_lock": 0.5,
    "stray": 0.7,
    "damage_parked": 0.7,
    "start": 5,
    "settle": 2,
}


@dataclass(slots=True)
class Plan:
    """The parts of one storm."""

    seed: int
    engines: list[str]
    sources: dict[str, dict[str, Any]]
    routes: dict[str, dict[str, Any]]
    sinks: dict[str, dict[str, Any]]
    log: dict[str, Any]
    acts: list[Act]

    def save(self, path: Path) -> None:
        """Write the plan to a file, an act a line."""
        fields = asdict(self)
        acts = ",\n".join(f"  {json.dumps(act)}" for act in fields.pop("acts"))
        head = json.dumps(fields, indent=1)[:-2]
        path.write_text(f'{head},\n "acts": [\n{acts}\n ]\n}}\n')

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file that :meth:`save` wrote."""
        return cls(**json.loads(path.read_text()))


_MANY: Final = ("produce", {"rows": 25})
_MOST: Final = {"from": 0.0, "to": 1.0, "namespace": ""}
_REFUSED: Final = ("sink_fault", {"mode": "refuse", "every": 4, "at": 1, "id": 1})
_SLOW: Final = {"mode": "slow", "kinds": ["pread"], "seconds": 0.1}
EPISODES: Final[list[tuple[Any, ...]]] = [
    # An older copy of the log comes back while sinks are further on, and open late.
    (
        *(_MANY, ("wait", {"milliseconds": 100}), "stop", "backup", "start", _MANY, _MANY),
        *(("wait", {"milliseconds": 150}), "stop", "restore", "start", _MANY, "produce", "settle"),
    ),
    # A replay begins while segments are rewritten.
    (_MANY, _MANY, _MANY, "settle", _MANY, _MANY, "settle", ("replay", _MOST), "settle"),
    # Many entries are parked, replayed and retried, one here and one there.
    (
        *(_REFUSED, _MANY, ("wait", {"milliseconds": 150}), ("replay", _MOST)),
        *(("wait", {"milliseconds": 100}), ("sink_heal", {}), ("park_retry", {"one": True})),
        *(("park_retry", {"one": True}), "settle"),
    ),
    # A long read on a slow disk, and an operator who wants to stop.
    (
        *(_MANY, _MANY, _MANY, "settle", ("disk_fault", {"fault": _SLOW})),
        *(("dry_replay", _MOST), ("wait", {"milliseconds": 100}), "pause", "stop", "start"),
    ),
    # A paused route uses up the budget.
    (("pause", {}), _MANY, _MANY, _MANY, _MANY, _MANY, ("wait", {"milliseconds": 300}), "settle"),
    # Terms end while slices linger.
    (_MANY, "elect", "produce", "elect", _MANY, "elect", "produce", "elect", "settle"),
    # The clock is wrong for a while.
    (
        ("clock", {"seconds": 2_400_000_000}),
        _MANY,
        _MANY,
        ("clock", {"seconds": -2_400_000_000}),
        _MANY,
    ),
    # A stop while appends still sync.
    ("stop_engine_hung", "start", _MANY, "stop_engine_hung", "start"),
]
"""Acts that have an effect only in their order."""


def draw(seed: int, acts: int) -> Plan:
    """Draw a plan with so many *acts* from *seed*."""
    rng = Random(seed)
    engines = ["a", "b"] if rng.random() < 0.15 else ["a"]
    sources = {
        f"s{n}": _source(rng, turns=len(engines) > 1) for n in range(rng.choice((1, 1, 2, 3, 4)))
    }
    names = [f"r{n}" for n in range(rng.choice((1, 2, 2, 3, 3, 4, 6)))]
    routes = {name: _route(rng, names[:at]) for at, name in enumerate(names)}
    sinks = {name: {"exact": rng.random() < 0.5, "upsert": rng.random() < 0.2} for name in names}
    plan = Plan(seed, engines, sources, routes, sinks, _log(rng, names), [])
    weights = [_tuned(plan, name, weight) for name, weight in WEIGHTS.items()]
    chosen = rng.choices(list(WEIGHTS), weights, k=acts)
    plan.acts = [_act(rng, plan, name) for name in chosen]
    for episode in rng.sample(EPISODES, k=rng.choice((0, 1, 1, 2))):
        at = rng.randrange(len(plan.acts) + 1)
        plan.acts[at:at] = list(_episode(rng, plan, episode))
    return plan


def _episode(rng: Random, plan: Plan, names: tuple[Any, ...]) -> Iterator[Act]:
    """Yield acts that have an effect only together: each a name, or a name and settings."""
    engine, route = rng.choice(plan.engines), rng.choice(list(plan.routes))
    for each in names:
        name, settings = (each, {}) if isinstance(each, str) else each
        _, drawn, pause = _act(rng, plan, name)
        if "route" in drawn:
            drawn["route"] = route
        yield [name, drawn | {"engine": engine} | settings, pause]


def _tuned(plan: Plan, name: str, weight: float) -> float:
    if name == "elect" and len(plan.engines) == 1:
        return 0.0
    if name in ("restore", "backup") and len(plan.engines) > 1:
        return 0.0
    return weight


def _source(rng: Random, *, turns: bool) -> dict[str, Any]:
    kind = "outbox" if turns or rng.random() < 0.45 else "history"
    release = "delivered" if turns or rng.random() < 0.5 else "logged"
    return {
        "kind": kind,
        "release": release,
        "turns": turns,
        "rows": rng.choice((3, 20, 50)),
        "max_in_flight": rng.choice((10, 60, 100_000)),
    }


def _route(rng: Random, before: list[str]) -> dict[str, Any]:
    first = rng.choice((2, 5))
    keys: dict[str, Any] = {
        "namespace": rng.choice(FILTERS),
        "on_error": rng.choice(("stop", "park", "park", "skip")),
        "park_order": rng.choice(("key", "key", "free")),
        "park_limit": {"entries": rng.choice((3, 30, 10_000))},
        "slice_rows": rng.choice((2, 7, 40, 50_000)),
        "retry": {"attempts": rng.choice((1, 2, 3)), "backoff": f"{first}ms..20ms"},
        "slice_timeout": "700ms",
        "worker_memory": None,
        # A route that comes back after it was forgotten is a new one, not an old one renamed.
        "start": "earliest",
    }
    if before and rng.random() < 0.15:
        keys["after"] = rng.choice(before)
    if rng.random() < 0.25:
        keys["linger"] = rng.choice(("20ms", "100ms"))
    if rng.random() < 0.15:
        keys["max_rate"] = rng.choice(("100/s", "400/s"))
    if rng.random() < 0.2:
        keys["parallelism"] = rng.choice((2, 3))
    if rng.random() < 0.2:
        keys["max_in_flight_per_key"] = 1
    return keys


def _log(rng: Random, _: list[str]) -> dict[str, Any]:
    log: dict[str, Any] = {
        "segment_bytes": SEGMENT,
        "compression": "none" if rng.random() < 0.8 else "lz4",
        "compaction": {"after": "off", "keep": "namespace"},
        "retention": {"age": "7d"},
    }
    if rng.random() < 0.5:
        log["compaction"] = {
            "after": "0s",
            "keep": rng.choice(("namespace", "key")),
            "tombstones": "0s",
            "rate": rng.choice((64 << 10, 64 << 10, 1 << 20, 64 << 20)),
        }
    if rng.random() < 0.4:
        log["retention"] = rng.choice(({"bytes": 3 * SEGMENT}, {"age": "400ms"}))
    if rng.random() < 0.4:
        log["max_bytes"] = rng.choice((4, 6)) * SEGMENT
        log["on_full"] = rng.choice(("wait", "stop-route"))
    return log


def _act(rng: Random, plan: Plan, name: str) -> Act:
    engine, source = rng.choice(plan.engines), rng.choice(list(plan.sources))
    of_source = {"source": source, "engine": engine}
    of_route = {"route": rng.choice(list(plan.routes)), "engine": engine}
    if name in _OF_SOURCE:
        settings = of_source | _of_source(rng, name)
    elif name in _OF_ENGINE:
        settings = {"engine": engine} | _of_engine(rng, name)
    else:
        settings = of_route | _of_route(rng, name)
    return [name, settings, rng.choice((0, 0, 0, 1, 6))]


def _of_source(rng: Random, name: str) -> dict[str, Any]:
    match name:
        case "produce":
            return {"rows": rng.choice((1, 1, 2, 4, 10, 25))}
        case "source_fault":
            return {"mode": rng.choice(("away", "away", "hang", "end"))}
    return {}


def _of_engine(rng: Random, name: str) -> dict[str, Any]:
    match name:
        case "wait":
            return {"milliseconds": rng.choice((5, 30, 120))}
        case "clock":
            return {"seconds": rng.choice((-3600, 30, 3600, 2_400_000_000))}
        case "disk_fault":
            return {"fault": _disk_fault(rng)}
        case "power_cut":
            return {"seed": rng.getrandbits(32)}
        case "stray":
            return {"name": rng.choice(_STRAYS)}
    return {}


def _of_route(rng: Random, name: str) -> dict[str, Any]:
    match name:
        case "sink_fault":
            return _sink_fault(rng)
        case "ack":
            return {"ahead": rng.choice((0, 0, 2, 9)), "count": rng.choice((1, 1, 4))}
        case "replay" | "dry_replay":
            first, last = sorted((rng.random(), rng.random()))
            return {"from": first, "to": last, "namespace": rng.choice(("", "", "^a", "y$"))}
        case "park_retry" | "park_skip":
            part = {"from": rng.random() / 2, "to": 0.5 + rng.random() / 2}
            return part | {"one": rng.random() < 0.4, "only": rng.random() < 0.3}
        case "reload":
            return {"change": _change(rng)}
    return {}


_OF_SOURCE: Final = (
    *("produce", "source_fault", "source_heal", "elect"),
    *("reader_pause", "reader_resume", "reader_restart", "reader_leave"),
)
_OF_ENGINE: Final = (
    *("wait", "clock", "disk_fault", "power_cut", "stray"),
    *("start", "stop", "stop_engine_hung", "kill", "disk_heal", "backup", "restore", "remove_lock"),
    *("status", "look", "compact", "export", "verify", "reload_file", "come_back", "settle"),
)
_STRAYS: Final = ("20260101.log", "notes.txt", "00000000000000000000.log.bak", "x.log")


def _sink_fault(rng: Random) -> dict[str, Any]:
    modes = (
        "refuse",
        "refuse",
        "refuse",
        "unnamed",
        "prefix",
        "wrong",
        "hang",
        "die",
        "away",
        "slow",
    )
    every = rng.choice((3, 10, 25))
    return {
        "mode": rng.choice(modes),
        "every": every,
        "at": rng.randrange(every),
        "id": rng.getrandbits(32),
    }


def _disk_fault(rng: Random) -> dict[str, Any]:
    match rng.choice(("full", "full", "full-cow", "fail-sync", "fail-read", "fail-name", "slow")):
        case "fail-sync":
            return {"mode": "fail", "kinds": ["sync"], "errno": 5, "after": rng.randrange(8)}
        case "fail-read":
            number = rng.choice((5, 24))
            kinds = ["open"] if number == 24 else ["pread"]
            return {"mode": "fail", "kinds": kinds, "errno": number, "after": rng.randrange(5)}
        case "fail-name":
            kinds = [rng.choice(("remove", "rename", "sync_directory"))]
            return {"mode": "fail", "kinds": kinds, "errno": 5, "after": rng.randrange(8)}
        case "slow":
            kinds = rng.choice((["pread"], ["sync"]))
            return {"mode": "slow", "kinds": kinds, "seconds": rng.choice((0.01, 0.05))}
        case mode:
            return {"mode": mode}


def _change(rng: Random) -> dict[str, Any]:
    return rng.choice(
        (
            {"slice_rows": rng.choice((1, 5, 1000))},
            {"on_error": rng.choice(("stop", "park", "skip"))},
            {"park_limit": {"entries": rng.choice((2, 50))}},
            {"parallelism": rng.choice((1, 2))},
            {"linger": rng.choice(("0s", "100ms"))},
            {"max_rate": rng.choice((None, "200/s"))},
            {"retry": {"attempts": 2, "backoff": "2ms..20ms"}},
        )
    )
