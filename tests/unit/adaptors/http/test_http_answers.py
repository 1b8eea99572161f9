"""The meaning of each answer of a receiver, and of its Retry-After."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest
from transporter_adaptors.http.answers import Answer, is_ack, retry_after, sink_error

from transporter.errors import Rejected, RouteFault, SinkTimeout, SinkUnavailable

PLACE = "HTTP receiver h:80"
DATE = "Sun, 22 Nov 2026 02:00:00 GMT"
LATER = "Sun, 22 Nov 2026 02:01:30 GMT"


@pytest.mark.parametrize("status", [200, 201, 202, 204, 207, 226, 299])
def test_two_hundred_and_something_is_an_ack(status: int) -> None:
    """Every 2xx means that the receiver has accepted the entries."""
    assert is_ack(Answer(status, {}, b""))


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (101, RouteFault),
        (300, RouteFault),
        (301, RouteFault),
        (302, RouteFault),
        (303, RouteFault),
        (304, RouteFault),
        (400, Rejected),
        (401, RouteFault),
        (402, Rejected),
        (403, RouteFault),
        (404, Rejected),
        (405, RouteFault),
        (407, RouteFault),
        (408, SinkTimeout),
        (409, Rejected),
        (410, Rejected),
        (413, Rejected),
        (415, Rejected),
        (422, Rejected),
        (425, SinkUnavailable),
        (429, SinkUnavailable),
        (431, Rejected),
        (499, Rejected),
        (500, SinkUnavailable),
        (501, SinkUnavailable),
        (502, SinkUnavailable),
        (503, SinkUnavailable),
        (504, SinkUnavailable),
        (599, SinkUnavailable),
        (999, SinkUnavailable),
    ],
)
def test_each_other_status_has_its_class(status: int, expected: type[Exception]) -> None:
    """Outages are retried, missing rights stop the route, and other 4xx reject the request."""
    error = sink_error(Answer(status, {}, b"why"), PLACE, 7)
    assert not is_ack(Answer(status, {}, b""))
    assert type(error) is expected
    assert str(error).startswith(f"{PLACE} answered {status}")
    assert '"why"' in str(error)
    assert getattr(error, "offset", 7) == 7


def test_a_refused_batch_names_no_entry() -> None:
    """A refusal without an offset names no entry."""
    error = sink_error(Answer(400, {}, b""), PLACE)
    assert isinstance(error, Rejected)
    assert error.offset is None
    assert str(error) == f"{PLACE} answered 400 Bad Request"


def test_what_is_shown_of_an_answer_is_short_plain_and_without_secrets() -> None:
    """The beginning of the receiver's text is shown, on one line, with secrets redacted."""
    text = b"\x1b[2J no\r\n\xffhunter2 \xe2\x80\xae" + b"x" * 70_000 + b"the end"
    shown = str(sink_error(Answer(400, {}, text), PLACE, None, ("hunter2",)))
    assert shown.startswith(f'{PLACE} answered 400 Bad Request "[2J no \ufffd*** xxx')
    assert shown.endswith('x…"')
    assert len(shown) < 300


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0.0),
        ({"Retry-After": ""}, 0.0),
        ({"Retry-After": "0"}, 0.0),
        ({"Retry-After": "120"}, 120.0),
        ({"Retry-After": " 7 "}, 7.0),
        ({"Retry-After": "-5"}, 0.0),
        ({"Retry-After": "1.5"}, 0.0),
        ({"Retry-After": "soon"}, 0.0),
        ({"Retry-After": "9" * 400}, 0.0),
        ({"Retry-After": "٣"}, 0.0),
        ({"Retry-After": LATER, "Date": DATE}, 90.0),
        ({"Retry-After": DATE, "Date": LATER}, 0.0),
        ({"Retry-After": "Sun, 99 Nov 2026 02:01:30 GMT", "Date": DATE}, 0.0),
    ],
)
def test_a_receiver_says_how_long_it_is_to_be_left_alone(
    headers: dict[str, str], seconds: float
) -> None:
    """Retry-After is seconds, or a date compared with the answer's own, and otherwise 0."""
    assert retry_after(headers) == seconds


def test_without_its_own_date_a_receivers_counts_from_ours() -> None:
    """Without the answer's own date, Retry-After is compared with this machine's clock."""
    headers = {"Retry-After": formatdate(time.time() + 60, usegmt=True)}
    assert 50 < retry_after(headers) <= 60
    assert 50 < retry_after({**headers, "Date": "never"}) <= 60
