"""The page of one log: its readers, the log, its routes, and the problems first. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from transporter.console.formats import count_text, iso_text, one_line, rate_text, size_text
from transporter.control.status_texts import activity, duration_text, source_lag

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from transporter.console.rates import Rates, Series
    from transporter.console.sources import Look

WIDTH: Final = 120
HEIGHT: Final = 28
_WINDOWS: Final = (120.0, 1800.0)
"""Seconds that a line covers: those of the console's own looks, or of the engine's history."""


class Mark(NamedTuple):
    """A state of a reader, route or log as it is shown: a word, a sign and a tone.

    Attributes:
        shape: the name of a sign, which the templates draw.
        tone: ``good``, ``busy``, ``warn``, ``bad`` or ``idle``.

    """

    word: str
    shape: str
    tone: str


_MARKS: Final = {
    "running": Mark("running", "dot", "good"),
    "starting": Mark("starting", "pie", "busy"),
    "retrying": Mark("retrying", "triangle", "warn"),
    "no space": Mark("no space", "triangle", "warn"),
    "paused": Mark("paused", "pause", "idle"),
    "candidate": Mark("candidate", "diamond", "idle"),
    "stopped": Mark("stopped", "square", "bad"),
    "ended": Mark("ended", "check", "idle"),
    "not running": Mark("not running", "ring", "idle"),
}
TROUBLED: Final = frozenset({"warn", "bad"})

LOOK_MARKS: Final = {
    "live": Mark("engine runs", "dot", "good"),
    "silent": Mark("does not answer", "triangle", "warn"),
    "stopped": Mark("no engine", "ring", "idle"),
    "absent": Mark("no log yet", "ring", "idle"),
    "damaged": Mark("cannot be read", "square", "bad"),
}


def mark_of(state: str) -> Mark:
    """Return the mark of a reader's or route's *state*. A state of a later version is a word."""
    return _MARKS.get(state, Mark(state, "ring", "idle"))


class Sparkline(NamedTuple):
    """A line over the last minutes, with its description for those who do not see it.

    ``points`` and ``area`` are coordinates of an SVG.
    """

    points: str
    area: str
    label: str


def sparkline(series: Series | None) -> Sparkline | None:
    """Return the line of *series*, or ``None`` while it has fewer than two points."""
    if series is None or len(series.points) < 2:  # noqa: PLR2004 - a line is between two
        return None
    rates = [rate for _, rate in series.points]
    top = max(rates) or 1.0
    oldest = series.points[0][0]
    window = next((each for each in _WINDOWS if oldest <= each), _WINDOWS[-1])
    places = [
        (round(WIDTH - min(ago, window) / window * WIDTH, 1), _height(rate, top))
        for ago, rate in series.points
    ]
    line = " ".join(f"{x:g},{y:g}" for x, y in places)
    area = f"{places[0][0]:g},{HEIGHT} {line} {places[-1][0]:g},{HEIGHT}"
    low, high = rate_text(min(rates)), rate_text(max(rates))
    label = f"last {duration_text(round(oldest))}: {low} to {high}, now {rate_text(series.now)}"
    return Sparkline(line, area, label)


def _height(rate: float, top: float) -> float:
    return round(HEIGHT - 2 - rate / top * (HEIGHT - 4), 1)


FEW: Final = 12
"""Routes that are shown in the order of the file. Of more, those with problems come first."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that an operator should look at, with the route or reader it is about, if any."""

    mark: Mark
    part: str
    text: str
    route: str = ""
    reader: str = ""


@dataclass(frozen=True, slots=True)
class PartCard:
    """A reader or a route as it is shown on the overview."""

    name: str
    adaptor: str
    mark: Mark
    count: str
    rate: str
    chart: Sparkline | None
    doing: str
    problem: str
    lag: str = ""
    watermark: str = ""
    parked: int = 0

    @property
    def is_troubled(self) -> bool:
        """Whether an operator should look at it."""
        return self.mark.tone in TROUBLED or bool(self.problem)


@dataclass(frozen=True, slots=True)
class Overview:
    """The overview of one log at one look."""

    name: str
    state: str
    mark: Mark
    headline: str
    explanation: str
    seen_at: str
    directory: str
    size: str = ""
    last: str = ""
    problems: tuple[Problem, ...] = ()
    readers: tuple[PartCard, ...] = ()
    routes: tuple[PartCard, ...] = ()
    parked: int = 0
    hint: str = ""

    @property
    def title(self) -> str:
        """The title of the page, with the number of problems before all else."""
        count = len(self.problems)
        if not count:
            return self.name
        return f"{count} problem{'' if count == 1 else 's'} · {self.name}"

    @property
    def tone(self) -> str:
        """The worst tone of the page, for the icon of its tab."""
        tones = {self.mark.tone, *(each.mark.tone for each in self.problems)}
        return next((tone for tone in ("bad", "warn") if tone in tones), self.mark.tone)


def overview(name: str, directory: str, look: Look, target: str) -> Overview:
    """Return the overview of the log *name* in *directory*. *target* is how commands name it."""
    status = look.status or {}
    routes = [route_card(each, look.rates) for each in status.get("routes", ())]
    if len(routes) > FEW:
        routes.sort(key=lambda each: (not each.is_troubled, -each.parked, each.name))
    return Overview(
        name=name,
        state=look.state,
        mark=LOOK_MARKS[look.state],
        headline=_headline(look),
        explanation=_explanation(look),
        seen_at=iso_text(look.at),
        directory=one_line(directory),
        size=size_text(status["size"]) if status else "",
        last=_offset_text(status["last"]) if status else "",
        problems=tuple(problems(look)),
        readers=tuple(_reader_card(each, look.rates) for each in status.get("readers", ())),
        routes=tuple(routes),
        parked=sum(each.parked for each in routes),
        hint=_hint(look, target),
    )


def problems(look: Look) -> Iterator[Problem]:
    """Yield the problems of a log, those of the whole log first."""
    status: Mapping[str, Any] = look.status or {}
    if look.state in {"silent", "damaged"}:
        yield Problem(LOOK_MARKS[look.state], "log", one_line(look.problem))
    for reader in status.get("readers", ()):
        if (text := _trouble(reader)) is not None:
            yield Problem(
                _trouble_mark(reader), f"reader {reader['name']}", text, reader=reader["name"]
            )
    for route in status.get("routes", ()):
        if (text := _trouble(route)) is not None:
            name = route["name"]
            yield Problem(_trouble_mark(route), f"route {name}", text, name)


def leadership(status: Mapping[str, Any]) -> list[tuple[str, Mark, str]]:
    """Return each reader of *status* with its mark, and whether this engine leads its source."""
    return [
        (each["name"], mark_of(each["state"]), _leadership_text(each))
        for each in status.get("readers", ())
    ]


def _leadership_text(reader: Mapping[str, Any]) -> str:
    if reader.get("leader") is None:
        return "no engines take turns at this source"
    if reader["leader"]:
        return f"this engine leads, in term {reader['term']}"
    return "another engine leads, or none; this one is a candidate"


def _trouble(part: Mapping[str, Any]) -> str | None:
    """Return the trouble of a reader or route as a text, ``None`` if it has none."""
    mark = mark_of(part["state"])
    problem, waiting = one_line(part.get("problem", "")), part.get("waiting")
    if mark.tone not in TROUBLED and not problem:
        return None
    if waiting is None:
        return problem or mark.word
    upcoming = f"next try in {duration_text(waiting['left'])}" if waiting["left"] else "tries now"
    text = f"failing for {duration_text(waiting['since'])}, {upcoming}"
    return f"{text}: {problem}" if problem else text


def _trouble_mark(part: Mapping[str, Any]) -> Mark:
    mark = mark_of(part["state"])
    return mark if mark.tone in TROUBLED else Mark(mark.word, "triangle", "warn")


def _headline(look: Look) -> str:
    status = look.status
    if status is None:
        return LOOK_MARKS[look.state].word
    if look.state == "stopped":
        return "no engine runs on this log"
    if look.state == "silent":
        return "the engine does not answer"
    if status.get("stopping"):
        return f"engine {status['pid']} is stopping"
    spark = "" if status.get("spark") else " · Spark is starting"
    return f"engine {status['pid']} runs{spark}"


def _explanation(look: Look) -> str:
    """Return what an operator needs to know where the picture is not that of a running engine."""
    match look.state:
        case "silent":
            return f"{one_line(look.problem)}. This is the last picture; asking again."
        case "stopped":
            return (
                "This is what the disk holds. Nothing is read or delivered until an engine starts."
            )
        case "absent":
            return "There is no log in this directory yet. The first start of the engine makes it."
        case "damaged":
            return "No engine can start on this log as it is. Find the extent of the damage first."
        case _:
            return ""


def _hint(look: Look, target: str) -> str:
    """Return the command to type next, where there is one."""
    match look.state:
        case "stopped" | "absent":
            return f"transporter run {target}" if target.endswith((".yaml", ".yml")) else ""
        case "damaged":
            return f"transporter log verify {target}"
        case _:
            return ""


def _offset_text(offset: int) -> str:
    return "none" if offset < 0 else count_text(offset)


def _rate(series: Series | None) -> str:
    return "" if series is None else rate_text(series.now)


def _reader_card(reader: Mapping[str, Any], rates: Rates) -> PartCard:
    series = rates.get(("reader", reader["name"]))
    doing = [f"leads in term {reader['term']}"] if reader.get("term") is not None else []
    if backlog := source_lag(reader.get("measured") or {}):
        doing.append(f"backlog {backlog}")
    return PartCard(
        name=reader["name"],
        adaptor=reader.get("adaptor", ""),
        mark=mark_of(reader["state"]),
        count=count_text(reader["logged"]),
        rate=_rate(series),
        chart=sparkline(series),
        doing=", ".join(doing),
        problem=_trouble(reader) or "",
    )


def route_card(route: Mapping[str, Any], rates: Rates) -> PartCard:
    """Return the card of a *route* of the status."""
    series = rates.get(("route", route["name"]))
    return PartCard(
        name=route["name"],
        adaptor=route.get("adaptor", ""),
        mark=mark_of(route["state"]),
        count=count_text(route["delivered"]) if "delivered" in route else "",
        rate=_rate(series),
        chart=sparkline(series),
        doing=activity({**route, "waiting": None}),
        problem=_trouble(route) or "",
        lag=count_text(route["lag"]),
        watermark=_offset_text(route["watermark"]),
        parked=route["parked"],
    )
