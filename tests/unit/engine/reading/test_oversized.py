"""Messages larger than an append, and the error entries logged in their place."""

from __future__ import annotations

import json

import pytest

from transporter.engine.reading.batch_appender import MAX_KEY, split_to_loggable
from transporter.errors import MessageTooLarge
from transporter.log.commit_log import MAX_APPEND
from transporter.message import ERROR_HEADER, JSON, Message, batch_bytes, messages_to_batch
from transporter.testing.contracts import messages_of

LARGE = b"x" * MAX_APPEND


def logged(*messages: Message) -> list[Message]:
    """Return the messages logged for *messages*, each part of which fits an append."""
    parts = split_to_loggable(messages_to_batch(messages))
    assert all(batch_bytes(part) <= MAX_APPEND for part in parts)
    return [message for part in parts for message in messages_of(part)]


def test_each_row_stays_at_its_place() -> None:
    """Each row keeps its place in the batch, so that its source can find it."""
    rows = [Message("n", LARGE if each in (0, 3, 6) else b"%d" % each) for each in range(7)]

    found = logged(*rows)

    assert [bool(each.headers) for each in found] == [each in (0, 3, 6) for each in range(7)]
    assert [each for each in found if not each.headers] == [rows[each] for each in (1, 2, 4, 5)]


@pytest.mark.parametrize(
    "large",
    [
        Message("n", LARGE, b"k", "update", "copy", 7, "t@id/3/17", "text/plain", (("a", b"1"),)),
        Message("n", None, b"k", "delete", "copy", 7, "t@id/3/17", None, (("a", LARGE),)),
    ],
    ids=["data", "headers"],
)
def test_it_says_where_the_message_is_and_how_large(large: Message) -> None:
    """The error entry keeps the columns that routes select and order by, but not the data."""
    (found,) = logged(large)

    assert (found.namespace, found.key, found.op, found.phase) == ("n", b"k", large.op, "copy")
    assert (found.timestamp, found.source_id, found.content_type) == (7, "t@id/3/17", JSON)
    ((name, reason),) = found.headers
    assert name == ERROR_HEADER
    assert reason is not None
    assert f"{batch_bytes(messages_to_batch([large]))} bytes" in reason.decode()
    assert "its source id is t@id/3/17" in reason.decode()
    sizes = {
        "key": 1,
        "data": len(large.data or b""),
        "headers": 1 + len(large.headers[0][1] or b""),
    }
    assert json.loads(found.data or b"") == {"source_id": "t@id/3/17", "bytes": sizes}


def test_a_large_key_is_left_out() -> None:
    """A key that could fill the append is left out, and a shorter one is kept."""
    kept, dropped = logged(Message("n", LARGE, b"k" * MAX_KEY), Message("n", b"", LARGE))

    assert (kept.key, dropped.key) == (b"k" * MAX_KEY, None)


def test_a_source_without_ids_is_said_to_have_none() -> None:
    """The error entry states that a source gives no id."""
    (found,) = logged(Message("n", LARGE))

    assert b"it has no source id" in (found.headers[0][1] or b"")


def test_a_name_that_is_too_large_is_refused() -> None:
    """A message whose namespace fits no append is refused."""
    with pytest.raises(MessageTooLarge):
        logged(Message("n" * MAX_APPEND, b""))
