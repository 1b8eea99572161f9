"""Meaning of an answer for entries, a slice or a route."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from transporter.errors import Rejected, RouteFault, SinkTimeout, SinkUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transporter.errors import SinkError

REDIRECTS: Final = frozenset({307, 308})
"""Redirects that keep the method and the body."""

UNAUTHORIZED: Final = 401
"""The answer to credentials that are missing, wrong or too old."""

_FAULTS: Final = frozenset({UNAUTHORIZED, 403, 405, 407})
_PASSING: Final = frozenset({425, 429})
_TIMED_OUT: Final = 408
_SHOWN: Final = 200
_SECONDS: Final = re.compile(r"[0-9]{1,9}")
_CONTROL: Final = re.compile(r"[\x00-\x20\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]+")


@dataclass(frozen=True, slots=True)
class Answer:
    """A receiver's answer. Names in *headers* may be in any case, and *text* is bounded."""

    status: int
    headers: Mapping[str, str]
    text: bytes


def is_ack(answer: Answer) -> bool:
    """Return whether the receiver has accepted the request."""
    return HTTPStatus(200) <= answer.status < HTTPStatus(300)


def is_gone(answer: Answer) -> bool:
    """Return whether the receiver has nothing at the URL, so that a DELETE has nothing to do."""
    return answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)


def describe_answer(answer: Answer, place: str, secrets: Sequence[str] = ()) -> str:
    """Describe *answer* of *place*, with the beginning of its text but without *secrets*."""
    status = answer.status
    return f"{place} answered {status}{_status_phrase(status)}{_excerpt(answer.text, secrets)}"


def sink_error(
    answer: Answer, place: str, offset: int | None = None, secrets: Sequence[str] = ()
) -> SinkError:
    """Translate an *answer* of *place* that is not an ack.

    *offset* is that of the entry if the request had only one. The beginning of the answer's
    text is shown, without the secrets in *secrets*.
    """
    status = answer.status
    text = describe_answer(answer, place, secrets)
    if status in _FAULTS:
        return RouteFault(f"{text}: check the url, the method and the headers")
    if status == _TIMED_OUT:
        return SinkTimeout(text)
    if status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return SinkUnavailable(text)
    if status >= HTTPStatus.BAD_REQUEST:
        return Rejected(text, offset)
    return RouteFault(f"{text}, which does not acknowledge the entries: check the url")


def retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds of the receiver's ``Retry-After``, or 0 without one.

    A date counts from the receiver's own ``Date``, so its clock may differ from ours.
    """
    asked = (headers.get("Retry-After") or "").strip()
    if _SECONDS.fullmatch(asked):
        return float(asked)
    until, now = _parse_time(asked), _parse_time(headers.get("Date") or "")
    if until is None:
        return 0.0
    return max(0.0, until - (time.time() if now is None else now))


def _parse_time(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _status_phrase(status: int) -> str:
    try:
        return f" {HTTPStatus(status).phrase}"
    except ValueError:
        return ""


def _excerpt(text: bytes, secrets: Sequence[str]) -> str:
    """Return the beginning of *text* on one line, in quotes, or an empty text without one."""
    shown = text.decode(errors="replace")
    for each in secrets:
        shown = shown.replace(each, "***")
    shown = _CONTROL.sub(" ", shown).strip()
    if not shown:
        return ""
    return f' "{shown[:_SHOWN]}{"…" if len(shown) > _SHOWN else ""}"'
