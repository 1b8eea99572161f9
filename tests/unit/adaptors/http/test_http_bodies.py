"""Requests made of entries."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transporter_adaptors.http.bodies import Requests
from transporter_adaptors.http.config import HttpWriterConfig

from transporter.errors import Rejected
from transporter.message import ENTRY_SCHEMA, Entries, Message
from transporter.testing import entries, hostile_messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transporter_adaptors.http.bodies import Request

URL = "http://127.0.0.1:1/"


def requests(batch: Entries, route: str = "r", **settings: object) -> list[Request]:
    """Return the requests that *settings* make of *batch*."""
    config = HttpWriterConfig.model_validate({"url": URL, **settings})
    return list(Requests(config, route).split(batch))


def with_offsets_of(messages: Sequence[Message], offsets: list[int]) -> Entries:
    """Return entries at *offsets*, some of which may repeat, as steps make them."""
    batch = entries(messages).batch
    numbers = pa.array(offsets, pa.int64())
    return Entries(batch.set_column(0, ENTRY_SCHEMA.field("offset"), numbers), "log-1", 2)


def test_a_whole_entry_has_its_id_and_everything_else() -> None:
    """An envelope has the id and the generation besides the fields of the file writer's line."""
    message = Message(
        "orders", b'{"n": 10.10}', b"k", "update", "copy", 0, "t/1", headers=(("h", b"\xff"),)
    )
    (request,) = requests(replace(entries([message], 7), generation=3))

    (fields,) = json.loads(request.body, parse_float=str)
    assert fields.pop("logged_at").endswith("Z")
    assert fields == {
        "id": "log-1/7",
        "generation": 3,
        "content_type": "application/json",
        "offset": 7,
        "namespace": "orders",
        "op": "update",
        "phase": "copy",
        "key": "k",
        "timestamp": "1970-01-01T00:00:00.000000Z",
        "source_id": "t/1",
        "headers": [["h", {"base64": "/w=="}]],
        "data": {"n": "10.10"},
    }
    assert (request.offset, request.rows) == (7, 1)


@settings(deadline=None)  # The machine may be busy.
@given(
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=30),
    rows=st.integers(1, 12),
    size=st.integers(1, 2000),
    form=st.sampled_from(["entries", "lines"]),
)
def test_requests_keep_to_their_limits_and_hold_everything_in_order(
    sizes: list[int], rows: int, size: int, form: str
) -> None:
    """No request exceeds its entries or bytes, except for a single entry that is too large."""
    batch = entries([Message("n", b'"%s"' % (b"x" * length)) for length in sizes])
    found = requests(batch, format=form, batch_rows=rows, batch_bytes=size)

    held = [offsets_in(request, form) for request in found]
    assert [offset for each in held for offset in each] == batch.offsets
    assert [request.rows for request in found] == [len(each) for each in held]
    for request, following in zip(found, [*found[1:], None], strict=True):
        assert request.rows <= rows
        assert len(request.body) <= size or request.rows == 1
        if following is not None and request.rows < rows:
            first = requests(batch, format=form, batch_rows=1, batch_bytes=size)
            head = len(first[sum(each.rows for each in found[: found.index(following)])].body)
            frame = 1 if form == "entries" else 0
            assert len(request.body) + head - frame > size  # one more would not have fitted


@pytest.mark.parametrize("form", ["entries", "lines"])
def test_a_request_may_be_exactly_as_large_as_allowed(form: str) -> None:
    """Two entries that fit to the byte share a request, and one byte less splits them."""
    batch = entries([Message("n", b"1"), Message("n", b"2")])
    (whole,) = requests(batch, format=form)
    assert requests(batch, format=form, batch_bytes=len(whole.body)) == [whole]
    assert len(requests(batch, format=form, batch_bytes=len(whole.body) - 1)) == 2


def offsets_in(request: Request, form: str) -> list[int]:
    """Return the offsets of the entries in the body of *request*."""
    found = (
        json.loads(request.body)
        if form == "entries"
        else [json.loads(line) for line in request.body.splitlines()]
    )
    return [each["offset"] for each in found]


def keys(batch: Entries, **settings: object) -> list[str]:
    """Return the idempotency keys of the requests that *batch* becomes."""
    return [each.headers["Idempotency-Key"] for each in requests(batch, **settings)]


@pytest.mark.parametrize("form", ["entries", "lines", "data"])
def test_a_redelivery_is_the_same_request(form: str) -> None:
    """The same entries make the same requests, keys included, and each request has its own key."""
    rows = {} if form == "data" else {"batch_rows": 3}
    first = requests(entries(hostile_messages()), format=form, **rows)
    again = requests(entries(hostile_messages()), format=form, **rows)
    told = [each.headers["Idempotency-Key"] for each in first]
    assert first == again
    assert len(set(told)) == len(first) > 3
    assert all(re.fullmatch(r'"log-1/r/0/[0-9]+-[0-9]+/[0-9a-f]{16}"', each) for each in told)
    assert max(map(len, told)) <= 255


def test_another_request_has_another_key() -> None:
    """Log, route, generation, range and content are all in the key."""
    batch = entries([Message("n", b"1"), Message("n", b"2")])
    found = [
        keys(batch),
        keys(replace(batch, log_id="log-2")),
        keys(batch, route="s"),
        keys(replace(batch, generation=1)),
        keys(entries([Message("n", b"1"), Message("n", b"2")], 2)),
        keys(entries([Message("n", b"1")])),
        keys(entries([Message("n", b"1"), Message("n", b"3")])),
        keys(with_offsets_of([Message("n", b"1"), Message("n", b"2")], [1, 1])),
    ]
    assert len({key for each in found for key in each}) == len(found)


def test_entries_that_a_step_made_of_one_have_ids_of_their_own() -> None:
    """The second output of an entry has its own id, wherever requests are cut."""
    batch = with_offsets_of([Message("n", b"%d" % n) for n in range(5)], [7, 7, 7, 8, 9])
    expected = ["log-1/7", "log-1/7/1", "log-1/7/2", "log-1/8", "log-1/9"]
    for rows in (1, 2, 5):
        found = requests(batch, batch_rows=rows)
        ids = [fields["id"] for request in found for fields in json.loads(request.body)]
        assert ids == expected
    alone = requests(batch, format="data")
    assert [each.headers["Entry-Id"] for each in alone] == expected


def test_what_is_beside_the_data_is_told_in_headers() -> None:
    """In the format data, headers carry key, namespace and op, safe for any value."""
    message = Message("a b\r\nX: é", b"\x00", b"\xff\r\n", "delete", "copy", content_type="text/x")
    (request,) = requests(entries([message], 5), format="data")
    assert request.body == b"\x00"
    key = request.headers.pop("Idempotency-Key")
    assert key.startswith('"log-1/r/0/5-5/')
    assert request.headers == {
        "Entry-Id": "log-1/5",
        "Entry-Generation": "0",
        "Entry-Namespace": "a%20b%0D%0AX%3A%20%C3%A9",
        "Entry-Op": "delete",
        "Entry-Phase": "copy",
        "Entry-Key": "%FF%0D%0A",
        "Content-Type": "text/x",
    }


def test_no_data_is_told_from_empty_data() -> None:
    """A tombstone has no content type, empty data has one, and untyped data has the default."""
    messages = [Message("n", None), Message("n", b""), Message("n", b"", content_type=None)]
    found = requests(entries(messages), format="data")
    assert [each.body for each in found] == [b"", b"", b""]
    assert [each.headers.get("Content-Type") for each in found] == [
        None,
        "application/json",
        "application/octet-stream",
    ]


@pytest.mark.parametrize("content_type", ["a\r\nX: y", "é", " ", "a\n"])
def test_a_content_type_that_is_no_header_is_refused(content_type: str) -> None:
    """An entry whose content type would break the request is rejected, after those before it."""
    batch = entries([Message("n", b"1"), Message("n", b"2", content_type=content_type)], 5)
    config = HttpWriterConfig.model_validate({"url": URL, "format": "data"})
    found = Requests(config, "r").split(batch)
    assert next(found).offset == 5
    with pytest.raises(Rejected) as failure:
        next(found)
    assert failure.value.offset == 6


PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = PARENT.replace("b7-01", "b8-01")


def traced(*parents: str | None) -> Entries:
    """Return an entry with each of *parents* as its traceparent."""
    return entries(
        [
            Message("a", b"{}", headers=(("traceparent", each.encode()),) if each else ())
            for each in parents
        ]
    )


@pytest.mark.parametrize("format", ["data", "entries", "lines"])
def test_a_request_carries_the_trace_of_its_entry(format: str) -> None:  # noqa: A002 - the setting
    """The request's headers carry the trace of its entry, so the body need not be read."""
    headers = (("traceparent", PARENT.encode()), ("tracestate", b"v=1"))
    (request,) = requests(entries([Message("a", b"{}", headers=headers)]), format=format)
    assert (request.headers["traceparent"], request.headers["tracestate"]) == (PARENT, "v=1")


@pytest.mark.parametrize(
    ("parents", "expected"),
    [((PARENT, PARENT), PARENT), ((PARENT, OTHER), None), ((PARENT, None), None), ((None,), None)],
)
def test_a_request_of_several_traces_carries_none(
    parents: tuple[str | None, ...], expected: str | None
) -> None:
    """A request of several traces has no trace header, and those of the entries are in the body."""
    (request,) = requests(traced(*parents))
    assert request.headers.get("traceparent") == expected
    found = [dict(row["headers"]).get("traceparent") for row in json.loads(request.body)]
    assert found == list(parents)
