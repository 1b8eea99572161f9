"""Tests of the trace context in the headers of a message."""

from __future__ import annotations

import pytest

from transporter.trace_context import trace_context

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_valid_context_is_found() -> None:
    """Ids and the flag come from the header, with the state beside them."""
    found = trace_context((("a", b"b"), ("traceparent", PARENT), ("tracestate", b"v=1,w=2")))
    assert found is not None
    assert (found.parent, found.state) == (PARENT.decode(), "v=1,w=2")
    assert f"{found.trace_id:032x}" == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert f"{found.span_id:016x}" == "00f067aa0ba902b7"
    assert found.sampled


def test_the_flag_is_one_bit() -> None:
    """Only the last bit of the flags marks a recorded trace."""
    for flags, sampled in ((b"00", False), (b"02", False), (b"03", True), (b"ff", True)):
        found = trace_context([("traceparent", PARENT[:-2] + flags)])
        assert found is not None
        assert found.sampled is sampled


def test_names_have_no_case_and_the_last_one_counts() -> None:
    """Names are compared without case, and the last of several headers counts."""
    later = PARENT.replace(b"b7-01", b"b8-01")
    found = trace_context([("Traceparent", PARENT), ("TRACEPARENT", later)])
    assert found is not None
    assert found.parent == later.decode()


@pytest.mark.parametrize(
    "parent",
    [
        None,
        b"",
        b"nonsense",
        PARENT[:-1],
        PARENT + b"\n",
        PARENT + b"-more",
        PARENT.upper(),
        PARENT.replace(b"00-4", b"ff-4"),
        PARENT.replace(b"4bf92f3577b34da6a3ce929d0e0e4736", b"0" * 32),
        PARENT.replace(b"00f067aa0ba902b7", b"0" * 16),
        PARENT.replace(b"00-4", b"cc-4") + b"-\r\nHost: evil",
        PARENT.replace(b"00-4", b"cc-4") + b"-\xff",
    ],
)
def test_what_is_no_parent_is_no_context(parent: bytes | None) -> None:
    """A header that is invalid for W3C is dropped, and so is the state beside it."""
    assert trace_context([("traceparent", parent), ("tracestate", b"v=1")]) is None


def test_a_later_version_may_have_more() -> None:
    """Fields that versions after 00 append are passed on unchanged."""
    parent = PARENT.replace(b"00-4", b"cc-4") + b"-what-comes"
    found = trace_context([("traceparent", parent)])
    assert found is not None
    assert found.parent == parent.decode()


@pytest.mark.parametrize("state", [None, b"", b"a\r\nb", b"\xff", b"v" * 513])
def test_a_state_that_is_invalid_is_left_out(state: bytes | None) -> None:
    """An invalid state is dropped, but the parent is kept, as in W3C's standard."""
    found = trace_context([("tracestate", state), ("traceparent", PARENT)])
    assert found is not None
    assert found.state is None
