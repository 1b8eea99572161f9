"""Arguments of requests as people type them, and the command that makes a request. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from transporter.control import requests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transporter.control.requests import Request


_DIGITS: Final = 18
"""Digits of an offset at most: it has 63 bits."""


def parse_offset(text: str) -> int:
    """Parse one offset, or another number that is not negative.

    Raises:
        ValueError: it is none.

    """
    if not text.isdecimal() or len(text) > _DIGITS:
        shown = text if len(text) <= _DIGITS else f"{text[:_DIGITS]}…"
        raise ValueError(f"{shown!r} is not a number of at most {_DIGITS} digits")
    return int(text)


def parse_offset_range(text: str) -> tuple[int, int]:
    """Parse ``X..Y`` or ``X`` into the first and the last offset.

    Raises:
        ValueError: it is neither.

    """
    first, dots, last = text.partition("..")
    try:
        found = parse_offset(first), parse_offset(last if dots else first)
    except ValueError:
        found = 1, 0
    if found[1] < found[0]:
        raise ValueError(f"{text!r} is not an offset range; use 14 or 9..15")
    return found


def range_words(ranges: Sequence[tuple[int, int]]) -> list[str]:
    """Return *ranges* in the form that :func:`parse_offset_range` takes."""
    return [str(first) if first == last else f"{first}..{last}" for first, last in ranges]


def named_ranges(ranges: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return *ranges* as arguments of a request about parked entries; without any it names all."""
    if len(ranges) == 1:
        # The form that older engines know.
        return {"first": ranges[0][0], "last": ranges[0][1]}
    return {"offsets": tuple(ranges)} if ranges else {}


def command_words(request: Request, target: str) -> list[str]:  # noqa: PLR0911 - one for each request
    """Return the words of the command that makes *request* of the log that *target* names."""
    reason = getattr(request, "reason", "")
    because = ["--reason", reason] if reason else []
    match request:
        case requests.Pause(route) | requests.Resume(route) | requests.Step(route):
            return ["route", _verb(request), target, route, *because]
        case requests.Forget(route):
            return ["route", "forget", target, route, "--yes", *because]
        case (
            requests.PauseReader(reader)
            | requests.ResumeReader(reader)
            | requests.RestartReader(reader)
        ):
            return ["reader", _verb(request), target, reader, *because]
        case requests.Ack(route, first, last):
            return ["ack", target, route, *range_words([(first, last)]), *because]
        case requests.CancelReplay(route):
            return ["replay", target, route, "--cancel", *because]
        case requests.Replay(route):
            return ["replay", target, route, *_replay_options(request), *because]
        case requests.RetryParked(route) | requests.SkipParked(route):
            ranges = request.offsets or ((request.first, request.last),)
            only = ["--only"] if request.only else []
            words = ["parked", _verb(request), target, route, *range_words(ranges)]
            return [*words, *only, *because]
        case requests.NoteParked(route, offset, text):
            return ["parked", "note", target, route, str(offset), text, *because]
        case requests.Reload():
            return ["reload", target, *["--dry-run"] * request.dry_run, *because]
        case _:
            raise TypeError(f"no command makes a {type(request).__name__}")


def _verb(request: Request) -> str:
    """Return the part of the request's class name that is its verb, as commands have it."""
    name = type(request).__name__.lower()
    return name.removesuffix("reader").removesuffix("parked")


def _replay_options(request: requests.Replay) -> list[str]:
    """Return the range of *request*, which is by offsets, as options."""
    options = ["--from", str(request.first)]
    options += [] if request.last is None else ["--to", str(request.last)]
    options += ["--namespace", request.namespace] if request.namespace else []
    return [*options, *["--partial"] * request.partial]
