"""The truth about a storm's sources and sinks, and the relations that must hold between them.

The truth is put together from journals only: of the sources, of the sinks, and of the engines,
which record their appends and undelivered settles. The numbers are those of DESIGN.md's
invariants.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from storm.journal import Follower
from storm.rows import row

if TYPE_CHECKING:
    from pathlib import Path

    from storm.plan import Plan

RowId = tuple[str, int]

IGNORED = os.environ.get("STORM_IGNORES", "")
"""Kinds of violations that are ignored, for storms on code with these defects."""
YEARS = 1_000_000_000
"""Seconds that a clock must be ahead for an engine to report it."""
WINDOW = 0.5
MOST_CALLS = 100
"""Failing calls of a sink within so many seconds. Back-off begins at 2 ms and ends at 20."""


class Violation(AssertionError):
    """A broken promise."""


@dataclass(slots=True)
class Delivery:
    """One entry that a sink took."""

    t: float
    generation: int
    offset: int
    row: RowId
    number: int
    """Number of its line in the sink's journal."""


@dataclass(slots=True)
class Log:
    """One engine's log: the row at each offset, and the entries that routes passed undelivered.

    ``since`` is when the log was last replaced by an older copy. Sink entries from before then are
    of another history wherever they are beyond ``kept``.
    """

    log_id: str = ""
    rows: dict[int, RowId] = field(default_factory=dict)
    passed: dict[str, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    parked_once: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    """Time at which each entry was parked last."""
    copied: set[int] = field(default_factory=set)
    """Offsets of which some route has had a parked copy, also where its settling has failed."""
    superseded: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    """Time at which a parked entry was superseded last."""
    superseded_through: dict[tuple[str, str], int] = field(default_factory=dict)
    """Offset through which a route has superseded a reader's entries.

    What a replay parks up to there stays, because its source does not give it again.
    """
    begun: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Time at which each forgotten route began again.

    Entries logged before are spared from then on where a source redelivers undelivered rows.
    """
    since: float = 0.0
    kept: int = 1 << 60


@dataclass(slots=True)
class Replayed:
    """A replay that an operator has begun, with the entries it must deliver before it is over."""

    engine: str
    route: str
    generation: int
    offsets: set[int]
    since: float
    """Time of the request, because generations of a forgotten route recur."""


class Truth:
    """Collects the journals of one storm, and judges by them."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._plan, self._folder = plan, folder
        self.logs = {engine: Log() for engine in plan.engines}
        self._engines = {each: Follower(folder / f"{each}.journal") for each in plan.engines}
        self._sinks = {each: Follower(folder / f"{each}.journal") for each in plan.routes}
        self._sources = {each: Follower(folder / f"{each}.journal") for each in plan.sources}
        self.deliveries: dict[str, list[tuple[str, Delivery]]] = defaultdict(list)
        self.calls: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.logged_ahead: dict[str, bool] = defaultdict(bool)
        """True if rows were logged while an engine's clock was years ahead."""
        self.sent: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.logged_at: dict[str, dict[int, float]] = defaultdict(dict)
        self.superseded_at: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
        """Times at which a process has superseded what an engine read of a source."""
        self.reopened_at: dict[tuple[str, str], list[tuple[float, int, frozenset[int]]]] = (
            defaultdict(list)
        )
        """Times at which a process went on with logged rows of a source, and their numbers."""
        self.lives: dict[str, list[tuple[float, int]]] = defaultdict(list)
        """Start times and ids of each engine's processes."""
        self.terms: dict[str, list[tuple[str, float]]] = defaultdict(list)
        self.given_up: dict[str, list[tuple[str, float]]] = defaultdict(list)
        """Times at which readers began to supersede undelivered entries."""
        self._copies: dict[str, dict[RowId, tuple[int, float]]] = defaultdict(dict)
        self._failing: dict[str, deque[float]] = defaultdict(deque)
        self.shared: dict[str, list[tuple[float, float]]] = defaultdict(list)
        """Times at which two engines ran on one log, until one of them noticed."""
        self.told: dict[str, dict[int, float]] = defaultdict(dict)
        self.committed: dict[str, int] = defaultdict(int)
        self.replays: list[Replayed] = []
        self.released: dict[tuple[str, str], list[tuple[float, int, int]]] = defaultdict(list)
        """Ranges released from a route, or from its replay, and the time."""
        self.inexact: dict[str, float] = defaultdict(float)
        """Exact sinks' times from which they may not hold an entry twice again."""
        self.absences: dict[str, list[tuple[float, float]]] = defaultdict(list)
        """Times in which sources were not in the pipeline file: their readers held nothing."""
        self.judged_told: dict[str, set[int]] = defaultdict(set)
        self.numbers = {route: re.compile(keys["namespace"]) for route, keys in plan.routes.items()}

    # Facts from the journals.

    def read(self) -> None:
        """Read the journal lines since the last call."""
        for engine, journal in self._engines.items():
            for line in journal.news():
                self._engine_said(engine, line)
        for route, journal in self._sinks.items():
            for line in journal.news():
                self._sink_said(route, line)
        self._read_sources()

    def _read_sources(self) -> None:
        for source, journal in self._sources.items():
            for line in journal.news():
                self._source_said(source, line)

    def _engine_said(self, engine: str, line: dict[str, Any]) -> None:
        match line["what"]:
            case "appended":
                self._appended(engine, line)
            case "held":
                self._held(engine, line)
            case "copying":
                self.logs[engine].copied.update(line["offsets"])
            case "settling":
                self._settled(self.logs[engine], line)
            case "releasing":
                told = (line["t"], line["first"], line["last"])
                self.released[engine, line["route"]].append(told)
            case "superseded":
                self._superseded(engine, line)
            case "sent":
                self.sent[engine].append(line)
            case "event":
                self.events[engine].append(line)
                if line["event"] == "route-begins":
                    self._begun_again(engine, line["route"], line["offset"], line["left"])

    def _begun_again(self, engine: str, route: str, first: int, left: list[int] | None) -> None:
        """Record that *route* begins at *first*, where the log does, and that *left* is in the log.

        Nothing held the log for it while it was forgotten: what has been removed, or compacted, is
        passed.
        """
        log = self.logs[engine]
        if log.begun[route]:
            got, kept = self.delivered(engine, route), set(left or ())
            through = max(kept, default=first)
            for offset in log.rows:
                gone = offset < first or (offset < through and offset not in kept)
                if gone and offset not in got:
                    log.passed[route].setdefault(offset, "operator")

    def _appended(self, engine: str, line: dict[str, Any]) -> None:
        offsets = range(line["first"], line["last"] + 1)
        self.logged_ahead[engine] = self.logged_ahead[engine] or line["skew"] > YEARS
        for offset, each in zip(offsets, map(parsed, line["rows"]), strict=True):
            self.note(engine, offset, each)
            self.logged_at[engine][offset] = line["t"]
            self._refuse_copies(engine, each, offset, line["t"])

    def _held(self, engine: str, line: dict[str, Any]) -> None:
        """Record the entries that an open has found, including those of an append that failed."""
        known = self.logs[engine].rows
        for offset, each in zip(line["offsets"], map(parsed, line["rows"]), strict=True):
            if offset not in known:
                self._refuse_copies(engine, each, offset, 0.0)
            self.note(engine, offset, each)

    def _settled(self, log: Log, line: dict[str, Any]) -> None:
        for offset in range(line["first"], line["last"] + 1):
            if line["kind"] == "parked":
                log.parked_once[line["route"]][offset] = line["t"]
            else:
                log.passed[line["route"]][offset] = line["kind"]

    def _superseded(self, engine: str, line: dict[str, Any]) -> None:
        log = self.logs[engine]
        passed = log.passed[line["route"]]
        for first, last in line["parts"]:
            for offset in range(first, last + 1):
                passed.setdefault(offset, "superseded")
        key = line["route"], line["reader"]
        before = log.superseded_through.get(key, -1)
        for offset in log.parked_once[line["route"]]:
            # A parked copy goes with it. The row shows its source.
            whose = log.rows.get(offset, ("",))[0]
            spared = self._spared(engine, line["route"], offset)
            if before < offset <= line["through"] and whose == line["reader"] and not spared:
                passed.setdefault(offset, "superseded")
                log.superseded[line["route"]][offset] = line["t"]
        log.superseded_through[key] = max(before, line["through"])

    def _spared(self, engine: str, route: str, offset: int) -> bool:
        """Return true if *offset* was logged before *route* was forgotten, and began again."""
        return self.logged_at[engine].get(offset, 0.0) < self.logs[engine].begun[route]

    def note(self, engine: str, offset: int, found: RowId) -> None:
        """Record that *found* stands at *offset*."""
        known = self.logs[engine].rows.setdefault(offset, found)
        if known != found:
            # Invariant 4: an offset is never assigned twice.
            raise Violation(f"engine {engine}: offset {offset} is {known} and {found}")

    def _refuse_copies(self, engine: str, found: RowId, offset: int, moment: float) -> None:
        """Refuse a row that is logged again, unless its reader has lost its term meanwhile."""
        known = self._copies[engine].get(found)
        self._copies[engine][found] = offset, moment
        if known is None or known[0] == offset or "logged twice" in IGNORED:
            return
        if known[0] in self.logs[engine].copied:
            return  # a copy superseded or skipped after the log dropped it is in no journal
        if self._given_up(engine, found[0], known[0]):
            return
        if self._removed_while_away(engine, found[0], known[0]):
            return
        self._read_sources()
        if not self._term_ended(engine, found[0], known[1]):
            raise Violation(f"engine {engine}: {found} is logged twice, at {known[0]} and {offset}")

    def _removed_while_away(self, engine: str, source: str, offset: int) -> bool:
        """Return true if *offset* left the log while its reader was not in the pipeline file."""
        opened = [
            event["t"]
            for event in self.events[engine]
            if event["event"] == "reader-opened" and event["reader"] == source
        ]
        # It holds nothing before it is open again, which may be long after the file names it.
        absences = [
            (since, min((each for each in opened if each >= until), default=until))
            for since, until in self.absences[source]
        ]
        for event in self.events[engine]:
            if not any(since <= event["t"] < until for since, until in absences):
                continue
            # The event of a compaction does not name what it dropped.
            if event["event"] == "log-compacted" or (
                event["event"] == "segment-removed" and offset <= event["through"]
            ):
                return True
        return False

    def _given_up(self, engine: str, source: str, offset: int) -> bool:
        """Return true if *source* redelivers the row at *offset*, released from a route."""
        passed = self.logs[engine].passed.values()
        waits = self._plan.sources[source]["release"] == "delivered"
        return waits and any(each.get(offset) == "released" for each in passed)

    def _term_ended(self, engine: str, source: str, moment: float) -> bool:
        """Return true if *engine* has superseded the entries it logged in the term of *moment*.

        Not later than *moment*, because rows polled in a term may be appended after its end, too.
        """
        own = max((t for who, t in self.terms[source] if who == engine and t <= moment), default=0)
        return any(who == engine and t > own for who, t in self.given_up[source])

    def _sink_said(self, route: str, line: dict[str, Any]) -> None:
        if "altered" in line:
            raise Violation(f"route {route}: offset {line['altered']} is not what its source gave")
        if "emptied" in line:
            return
        self.calls[route].append(line)
        self._refuse_spinning(route, line)
        number = len(self.calls[route])
        for offset, (source, n) in zip(line["offsets"], line["rows"], strict=True):
            each = Delivery(line["t"], line["generation"], offset, (source, n), number)
            self.deliveries[route].append((line["log"], each))
            engine = self._engine_of(line["log"])
            if engine is not None and line["t"] >= self.logs[engine].since:
                self.note(engine, offset, (source, n))

    def _refuse_spinning(self, route: str, line: dict[str, Any]) -> None:
        """Refuse calls of a failing sink that come without a back-off."""
        times = self._failing[route]
        if not line["failed"] or line["offsets"]:
            times.clear()
            return
        times.append(line["t"])
        while times[0] < line["t"] - WINDOW:
            times.popleft()
        if len(times) > MOST_CALLS:
            raise Violation(f"route {route}: {len(times)} calls failed within {WINDOW} s")

    def _source_said(self, source: str, line: dict[str, Any]) -> None:
        match line["what"]:
            case "deleted":
                for number in line["rows"]:
                    self.told[source].setdefault(number, line["t"])
            case "superseded" if self._supersedes(source, line):
                self.superseded_at[line["engine"], source].append((line["t"], line["pid"]))
            case "reopened":
                moment = (line["t"], line["pid"], frozenset(line["rows"]))
                self.reopened_at[line["engine"], source].append(moment)
            case "superseding" if line["why"] != "opened":
                self.given_up[source].append((line["engine"], line["t"]))
            case "term":
                self.terms[source].append((line["engine"], line["t"]))
                for number in line["known"]:
                    self.told[source].setdefault(number, line["t"])
            case "committed":
                for number in range(self.committed[source], line["position"]):
                    self.told[source].setdefault(number, line["t"])
                self.committed[source] = max(self.committed[source], line["position"])

    def _supersedes(self, source: str, line: dict[str, Any]) -> bool:
        """Return true if routes pass the superseded entries, which needs the engine's lock.

        Another engine on its log goes on with the entries.
        """
        begun = [pid for t, pid in self.lives[line["engine"]] if t <= line["t"]]
        waits = self._plan.sources[source]["release"] == "delivered"
        return waits and begun[-1:] == [line["pid"]]

    def _engine_of(self, log_id: str) -> str | None:
        return next((name for name, log in self.logs.items() if log.log_id == log_id), None)

    # Facts from the driver.

    def restored(self, engine: str, rows: dict[int, RowId], last: int, moment: float) -> None:
        """Record that the log of *engine* is an older copy again, to offset *last* with *rows*."""
        # Now, because an operator's skips in the newer log are lost with it.
        self.judge_told()
        log = self.logs[engine]
        log.kept = last  # retention may have removed the rows up to there
        log.rows = {offset: each for offset, each in log.rows.items() if offset <= log.kept} | rows
        log.copied = {offset for offset in log.copied if offset <= log.kept}
        log.since = moment
        self.sent[engine].clear()
        self.logged_at[engine].clear()
        self._copies[engine].clear()
        for route in self._plan.routes:
            self.inexact[route] = moment
            log.passed[route] = {o: k for o, k in log.passed[route].items() if o <= log.kept}
            known = log.parked_once[route]
            log.parked_once[route] = {o: t for o, t in known.items() if o <= log.kept}
        self.replays = [each for each in self.replays if each.engine != engine]

    def passed(self, engine: str, route: str, first: int, last: int, kind: str) -> None:
        """Record that an operator let *route* pass a range."""
        passed = self.logs[engine].passed[route]
        for offset in range(first, last + 1):
            # An entry released during its delivery may still be parked.
            if passed.get(offset, "released") == "released":
                passed[offset] = kind

    def end_replays(self, engine: str, route: str) -> None:
        """Record that the replays of *route* are over, whatever they have delivered."""
        kept = [each for each in self.replays if (each.engine, each.route) != (engine, route)]
        self.replays = kept

    def forgot(self, engine: str, route: str, parked: list[int], moment: float) -> None:
        """Record that *route* begins again at *moment*, without its replay and parked entries.

        Its generations begin again, too, so an exact sink may have stored one that the route has
        not reached. It may get everything once more, but only once.
        """
        log = self.logs[engine]
        log.begun[route] = moment
        for offset in parked:
            log.passed[route].setdefault(offset, "operator")
        self.inexact[route] = max(self.inexact[route], moment)
        self.end_replays(engine, route)

    # Promises.

    def accepts(self, route: str, found: RowId) -> bool:
        """Return true if *route* takes the row *found*."""
        wanted = row(self._plan.seed, *found)
        return self.numbers[route].search(wanted.namespace) is not None

    def delivered(self, engine: str, route: str) -> dict[int, list[Delivery]]:
        """Return the deliveries of *engine*'s current log to the sink of *route*, by offset."""
        log, found = self.logs[engine], defaultdict(list)
        for log_id, each in self.deliveries[route]:
            if log_id == log.log_id and (each.t >= log.since or each.offset <= log.kept):
                found[each.offset].append(each)
        return found

    def judge(self, engine: str, watermarks: dict[str, int], parked: dict[str, set[int]]) -> None:
        """Raise a Violation unless everything holds for a log at these *watermarks*."""
        for route, watermark in watermarks.items():
            self._nothing_lost(engine, route, watermark, parked[route])
            self._in_order(engine, route)
            if self._plan.sinks[route]["exact"]:
                self._exactly_once(engine, route)
        for replay in [each for each in self.replays if each.engine == engine]:
            self._replayed(replay, parked[replay.route])
        self._nothing_stale(engine)

    def _nothing_stale(self, engine: str) -> None:
        """Refuse slices that were cut after a reader had superseded an entry in them."""
        rows, logged = self.logs[engine].rows, self.logged_at[engine]
        for line in self.sent[engine]:
            passed = self.logs[engine].passed[line["route"]]
            for offset in range(line["first"], line["last"] + 1):
                if line["generation"] or offset not in rows or offset in passed:
                    continue
                if self._spared(engine, line["route"], offset):
                    continue
                asked = self.superseded_at[engine, rows[offset][0]]
                if any(
                    logged.get(offset, line["cut"]) < t < line["cut"]
                    and not self._reopened(engine, rows[offset], t, line["cut"], pid)
                    for t, pid in asked
                ):
                    raise Violation(
                        f"engine {engine}, route {line['route']}: {offset} was in a slice that was "
                        "cut after it was superseded"
                    )
        self.sent[engine].clear()

    def _reopened(self, engine: str, found: RowId, since: float, until: float, pid: int) -> bool:
        """Return true if a later life than *pid* has gone on with the row *found* in between.

        A kill may come before the superseding is on record, which a full disk delays.
        """
        source, number = found
        return any(
            since < t < until and each != pid and number in numbers
            for t, each, numbers in self.reopened_at[engine, source]
        )

    def _nothing_lost(self, engine: str, route: str, watermark: int, parked: set[int]) -> None:
        """Invariants 5 and 6: each settled entry was delivered, or passed by request."""
        log, got = self.logs[engine], self.delivered(engine, route)
        passed = log.passed[route]
        lost = [
            offset
            for offset, found in log.rows.items()
            if offset <= watermark
            and offset not in got
            and offset not in passed
            and offset not in parked
            and self.accepts(route, found)
        ]
        if lost:
            raise Violation(
                f"engine {engine}, route {route}: settled up to {watermark}, and its sink never "
                f"got {ranges_of(lost)}"
            )

    def _in_order(self, engine: str, route: str) -> None:
        """Invariant 9: of each key the first deliveries come in the order of the log."""
        log = self.logs[engine]
        free = self._plan.routes[route]["park_order"] == "free"
        aside = {
            offset
            for offset, moment in log.parked_once[route].items()
            # Of two engines on one log neither sees the entries that the other has parked.
            if free or any(begin <= moment <= end for begin, end in self.shared[engine])
        }
        last: dict[bytes, int] = {}
        seen: set[int] = set()
        for log_id, each in self.deliveries[route]:
            of_another = each.t < log.since and each.offset > log.kept
            if log_id != log.log_id or of_another or each.offset in seen:
                continue
            seen.add(each.offset)
            if each.t < log.since:
                continue
            key = row(self._plan.seed, *each.row).key
            if key is None or each.offset in log.passed[route] or each.offset in aside:
                continue
            if last.get(key, -1) > each.offset:
                raise Violation(
                    f"engine {engine}, route {route}, key {key!r}: {each.offset} came first behind "
                    f"{last[key]}"
                )
            last[key] = each.offset

    def _exactly_once(self, engine: str, route: str) -> None:
        """Refuse repetitions in a sink that stores its offset, except for replays and retries."""
        seen: set[tuple[int, int]] = set()
        since = self.inexact[route]
        for log_id, each in self.deliveries[route]:
            if log_id != self.logs[engine].log_id or each.t < since or each.generation < 0:
                continue
            if (mark := (each.generation, each.offset)) in seen:
                raise Violation(
                    f"engine {engine}, route {route}: an exact sink got {each.offset} twice in "
                    f"generation {each.generation}"
                )
            seen.add(mark)

    def _replayed(self, replay: Replayed, parked: set[int]) -> None:
        """Refuse a finished replay that has not delivered the entries logged when it began."""
        got = {
            offset
            for offset, each in self.delivered(replay.engine, replay.route).items()
            if any(
                one.t >= replay.since
                and (one.generation >= replay.generation or one.generation < 0)
                for one in each
            )
        }
        passed = self.logs[replay.engine].passed[replay.route]
        lost = [
            offset
            for offset in sorted(replay.offsets)
            if offset not in got
            and offset not in passed
            and offset not in parked
            and offset not in self.logs[replay.engine].parked_once[replay.route]
            and not self._taken(replay, offset)
        ]
        if lost:
            raise Violation(
                f"engine {replay.engine}, route {replay.route}: the replay of generation "
                f"{replay.generation} never delivered {ranges_of(lost)}"
            )

    def _taken(self, replay: Replayed, offset: int) -> bool:
        """Return true if *offset* was released, for the budget's sake, since *replay* began."""
        released = self.released[replay.engine, replay.route]
        return any(t > replay.since and first <= offset <= last for t, first, last in released)

    def judge_rows(self, available: dict[str, int], parked: dict[str, set[RowId]]) -> None:
        """Invariant 6: every row reaches every route that takes it, or was passed there for good.

        Superseded is not for good: its source redelivers it.
        """
        for route in self._plan.routes:
            reached = {each.row for _, each in self.deliveries[route]} | parked[route]
            for log in self.logs.values():
                kinds = log.passed[route]
                reached |= {
                    found
                    for offset, found in log.rows.items()
                    if kinds.get(offset, "superseded") != "superseded"
                }
            for source, count in available.items():
                excused = self.forgotten(source)
                lost = [
                    n
                    for n in range(count)
                    if (source, n) not in reached
                    and n not in excused
                    and self.accepts(route, (source, n))
                ]
                if lost:
                    raise Violation(f"route {route}: of {source} rows {ranges_of(lost)} never came")

    def forgotten(self, source: str) -> set[int]:
        """Return the rows that were acknowledged to a source, and that an older copy lacks."""
        restored = max((log.since for log in self.logs.values()), default=0.0)
        keys = self._plan.sources[source]
        if not restored or keys["kind"] == "history":
            return set()
        return {n for n, told in self.told[source].items() if told <= restored}

    def judge_told(self) -> None:
        """Invariant 11, ``release: delivered``: only rows delivered everywhere are acknowledged."""
        for source, keys in self._plan.sources.items():
            if keys["release"] != "delivered":
                continue
            told = self.told[source]
            news = set(told) - self.judged_told[source]
            for route in self._plan.routes:
                self._told_rightly(source, route, {n: told[n] for n in news})
            self.judged_told[source] |= news

    def _told_rightly(self, source: str, route: str, told: dict[int, float]) -> None:
        first: dict[int, float] = {}
        for _, each in self.deliveries[route]:
            if each.row[0] == source:
                first.setdefault(each.row[1], each.t)
        excused = {
            found[1]
            for log in self.logs.values()
            for offset, found in log.rows.items()
            if found[0] == source and log.passed[route].get(offset) in ("skipped", "operator")
        }
        early = [
            n
            for n, moment in told.items()
            if self.accepts(route, (source, n))
            and n not in excused
            and first.get(n, float("inf")) > moment
        ]
        if early:
            raise Violation(
                f"{source} was told of {ranges_of(early)}, which {route} had not delivered"
            )


def parsed(source_id: str) -> RowId:
    """Return the row that *source_id* names."""
    source, _, number = source_id.rpartition("/")
    return source, int(number)


def ranges_of(numbers: list[int]) -> str:
    """Return *numbers* as text, in ranges."""
    found: list[list[int]] = []
    for each in sorted(numbers):
        if found and found[-1][1] + 1 == each:
            found[-1][1] = each
        else:
            found.append([each, each])
    text = ", ".join(f"{a}..{b}" if a < b else str(a) for a, b in found[:12])
    return f"{text}{' …' if len(found) > 12 else ''} ({len(numbers)})"
