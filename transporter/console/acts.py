"""The acts that the console offers: each is one request to the engine, by a form. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from transporter.control import requests
from transporter.control.request_arguments import (
    named_ranges,
    parse_offset,
    parse_offset_range,
    range_words,
)
from transporter.errors import ConfigError
from transporter.log.time_spec import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from transporter.control.requests import Request

Values = dict[str, str]
Scope = Literal["log", "route", "reader"]
PREFIXES: Final[Mapping[Scope, str]] = {"log": "", "route": "/r/<part>", "reader": "/reader/<part>"}
_PROOF: Final = frozenset({"form", "typed"})
"""Fields by which a person has confirmed a form."""
_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Input:
    """A field of a form. One that is not ``previewed`` makes no difference to the preview."""

    name: str
    label: str
    hint: str = ""
    kind: Literal["text", "checkbox", "hidden"] = "text"
    required: bool = False
    previewed: bool = True


@dataclass(frozen=True, slots=True)
class Act:
    """One act.

    Attributes:
        path: its address below that of its log, route or reader.
        effect: what will happen, in full sentences.
        build: makes the request of a part's name, the form's values and the reason.
        needs_reason: whether the form must give a reason.
        needs_engine: whether nothing can be done while no engine runs.
        needs_preview: whether the form can be sent only after its preview was shown.
        options: fields beside the inputs, for programs.

    """

    scope: Scope
    path: str
    title: str
    effect: str
    build: Callable[[str, Values, str], Request]
    inputs: tuple[Input, ...] = ()
    needs_reason: bool = False
    needs_engine: bool = False
    needs_preview: bool = False
    options: tuple[str, ...] = ()

    @property
    def endpoint(self) -> str:
        """The name by which templates link to the act: ``route_parked_retry``."""
        return f"{self.scope}_{self.path.replace('/', '_')}"

    @property
    def rule(self) -> str:
        """The address of the act below that of its log."""
        return f"{PREFIXES[self.scope]}/{self.path}"

    def request(self, part: str, values: Values) -> Request:
        """Return the request that the form's *values* make of *part*.

        Raises:
            ConfigError: a value is missing or wrong, or a field is unknown.

        """
        known = (*(each.name for each in self.inputs), *self.options, "reason")
        if unknown := sorted(values.keys() - {*known} - _PROOF):
            raise ConfigError(
                f"{', '.join(unknown)}: no such field here; there are {', '.join(known)}"
            )
        for each in self.inputs:
            if each.required and not values.get(each.name, "").strip():
                raise ConfigError(f"{each.label}: give a value")
        try:
            return self.build(part, values, values.get("reason", "").strip())
        except ValueError as error:
            raise ConfigError(str(error)) from error


def parse_ranges(text: str) -> list[tuple[int, int]]:
    """Return the offset ranges in *text*, which commas or blanks separate: at least one.

    Raises:
        ValueError: there is none, or one is wrong.

    """
    found = [parse_offset_range(each) for each in text.replace(",", " ").split()]
    if not found:
        raise ValueError("no offset is named; use 14 or 9..15")
    return found


def _flag(values: Values, name: str) -> bool:
    """Return the boolean field *name*, false if it is not there."""
    text = values.get(name, "").strip().lower()
    if text not in _YES | _NO:
        raise ValueError(f"{name}: {text!r} is neither true nor false")
    return text in _YES


def ranges_text(offsets: Iterable[int]) -> str:
    """Return *offsets* as :func:`parse_ranges` takes them, with as few ranges as possible."""
    found: list[tuple[int, int]] = []
    for each in sorted(offsets):
        if found and found[-1][1] == each - 1:
            found[-1] = (found[-1][0], each)
        else:
            found.append((each, each))
    return ",".join(range_words(found))


def _replay(part: str, values: Values, reason: str) -> Request:
    return requests.Replay(
        part,
        **_bound(values.get("from", ""), "first", "since"),
        **_bound(values.get("to", ""), "last", "until"),
        namespace=values.get("namespace", "").strip(),
        partial=_flag(values, "partial"),
        dry_run=_flag(values, "dry_run"),
        reason=reason,
    )


def _bound(text: str, offset: str, time: str) -> dict[str, Any]:
    text = text.strip()
    if not text:
        return {}
    if text.isdecimal():
        return {offset: parse_offset(text)}
    try:
        return {time: parse_time(text, datetime.now(UTC)).microseconds}
    except ValueError as error:
        raise ValueError(f"{text!r} {error}") from error


def _ack(part: str, values: Values, reason: str) -> Request:
    first, last = values["first"].strip(), values.get("last", "").strip()
    return requests.Ack(part, *parse_offset_range(f"{first}..{last}" if last else first), reason)


def _retry(part: str, values: Values, reason: str) -> Request:
    return requests.RetryParked(part, reason=reason, **_selection(values))


def _skip(part: str, values: Values, reason: str) -> Request:
    return requests.SkipParked(part, reason=reason, **_selection(values))


def _selection(values: Values) -> dict[str, Any]:
    return {**named_ranges(parse_ranges(values["offsets"])), "only": _flag(values, "only")}


def _note(part: str, values: Values, reason: str) -> Request:
    first, last = parse_offset_range(values["offsets"].strip())
    if first != last:
        raise ValueError("a note is about one entry; give one offset")
    return requests.NoteParked(part, first, values.get("text", "").strip(), reason)


_OFFSETS: Final = Input("offsets", "Offsets", "3 7..9", required=True)
_ONLY: Final = Input("only", "Leave entries behind these parked", kind="checkbox", previewed=False)

ACTS: Final = (
    Act(
        "route",
        "pause",
        "Pause",
        "The route delivers nothing more until somebody resumes it, also after a restart. It "
        "finishes its present slice. Readers and other routes continue.",
        lambda part, _, reason: requests.Pause(part, reason),
    ),
    Act(
        "route",
        "resume",
        "Resume",
        "The route continues after a pause. One that has halted, or waits for its sink, tries "
        "again at once.",
        lambda part, _, reason: requests.Resume(part, reason),
    ),
    Act(
        "route",
        "step",
        "Step",
        "The paused route delivers the next entry that its filter takes, and stays paused.",
        lambda part, _, reason: requests.Step(part, reason),
        needs_engine=True,
    ),
    Act(
        "route",
        "ack",
        "Acknowledge",
        "The route settles these entries without delivering them. This cannot be undone, but a "
        "replay can deliver them later.",
        _ack,
        (
            Input("first", "First offset", required=True),
            Input("last", "Last offset", "the same"),
        ),
        needs_reason=True,
    ),
    Act(
        "route",
        "replay",
        "Replay",
        "The route delivers the entries of this range again, before new ones.",
        _replay,
        (
            Input("from", "From", "2h, offset or time", required=True),
            Input("to", "To", "the watermark"),
            Input("namespace", "Namespace", r"^orders\."),
            Input("partial", "Also if some entries are gone", kind="checkbox"),
        ),
        needs_reason=True,
        needs_preview=True,
        options=("dry_run",),
    ),
    Act(
        "route",
        "replay/cancel",
        "Cancel the replay",
        "The replay ends where it is. Entries that it has not delivered yet are not delivered "
        "again.",
        lambda part, _, reason: requests.CancelReplay(part, reason),
    ),
    Act(
        "route",
        "forget",
        "Forget",
        "All progress of the route and its parked entries are removed. The route must no longer "
        "be in the running pipeline. This cannot be undone.",
        lambda part, _, reason: requests.Forget(part, reason),
        needs_reason=True,
    ),
    Act(
        "route",
        "parked/retry",
        "Retry parked entries",
        "The route delivers these entries again, each key in order. Entries that fail again stay "
        "parked. What was parked after this list was made is not touched.",
        _retry,
        (_OFFSETS, _ONLY),
        needs_preview=True,
    ),
    Act(
        "route",
        "parked/skip",
        "Skip parked entries",
        "The route drops these entries for good, and then delivers those parked behind them. They "
        "stay in the log as long as it retains them.",
        _skip,
        (_OFFSETS, _ONLY),
        needs_reason=True,
        needs_preview=True,
    ),
    Act(
        "route",
        "parked/note",
        "Write a note",
        "The note is a line of the audit file. It changes nothing else. An empty note removes "
        "the former one.",
        _note,
        (Input("offsets", "Offset", required=True), Input("text", "Note")),
    ),
    Act(
        "reader",
        "pause",
        "Pause",
        "The reader is closed, and stays closed until somebody resumes it, also after a restart. "
        "Routes continue.",
        lambda part, _, reason: requests.PauseReader(part, reason),
    ),
    Act(
        "reader",
        "resume",
        "Resume",
        "The reader is opened again after a pause. One that waits for its source tries at once.",
        lambda part, _, reason: requests.ResumeReader(part, reason),
    ),
    Act(
        "reader",
        "restart",
        "Restart",
        "The reader is closed and opened again, also if it has stopped at an error.",
        lambda part, _, reason: requests.RestartReader(part, reason),
        needs_engine=True,
    ),
    Act(
        "log",
        "reload",
        "Reload",
        "The engine reads its pipeline file again and takes up what has changed. If a setting "
        "cannot change while it runs, nothing changes.",
        lambda _, values, reason: requests.Reload(reason, _flag(values, "dry_run")),
        needs_engine=True,
        needs_preview=True,
        options=("dry_run",),
    ),
)
