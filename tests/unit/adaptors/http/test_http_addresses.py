"""Methods and URLs that depend on the entry."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest
from http_tools import OK, Receiver, Reply, failure, ids_of, write

from transporter.errors import Rejected
from transporter.message import Message
from transporter.testing import entries

if TYPE_CHECKING:
    from http_tools import Open

PUT_AND_DELETE = {"method": "PUT", "methods": {"delete": "DELETE"}, "format": "data"}


def test_what_is_put_and_what_is_deleted(make_writer: Open) -> None:
    """With the key in the URL, each update is a PUT and each tombstone is a DELETE."""
    batch = entries(
        [
            Message("orders", b"1", b"a/b c?", "update"),
            Message("orders", None, "ä%2F#".encode(), "delete"),
            Message("carts", b"2", b"\xff\x00", "insert"),
        ]
    )
    with Receiver() as receiver:
        url = receiver.url + "/{namespace}/x{key}?of={key}&{{y}}"
        assert write(make_writer(url, **PUT_AND_DELETE), batch).complete
    assert [(each.method, each.path, each.body) for each in receiver.requests] == [
        ("PUT", "/in/orders/xa%2Fb%20c%3F?of=a%2Fb%20c%3F&%7By%7D", b"1"),
        ("DELETE", "/in/orders/x%C3%A4%252F%23?of=%C3%A4%252F%23&%7By%7D", b""),
        ("PUT", "/in/carts/x%FF%00?of=%FF%00&%7By%7D", b"2"),
    ]
    assert [each.headers["content-length"] for each in receiver.requests] == ["1", "0", "1"]


def test_entries_of_one_address_share_a_request(make_writer: Open) -> None:
    """A request holds successive entries of the same URL, so the order is kept."""
    names = "aabab"
    batch = entries([Message(name, b"%d" % at) for at, name in enumerate(names)])
    with Receiver() as receiver:
        assert write(make_writer(receiver.url + "/{namespace}", batch_rows=2), batch).complete
    assert [(each.path, len(ids_of(each))) for each in receiver.requests] == [
        ("/in/a", 2),
        ("/in/b", 1),
        ("/in/a", 1),
        ("/in/b", 1),
    ]


@pytest.mark.parametrize("key", [None, b"", b".", b"..", b"a/../b", b"..\\x", b"x/.", b"/./"])
def test_a_key_that_leads_elsewhere_is_rejected(make_writer: Open, key: bytes | None) -> None:
    """A key that is missing, or has a part . or .., is rejected, as it names another resource."""
    batch = entries([Message("n", b"1", b"k"), Message("n", b"2", b"k"), Message("n", b"3", key)])
    with Receiver() as receiver:
        ack = write(make_writer(receiver.url + "/{key}"), batch)
    ((error, offset),) = ack.failures
    assert (type(error), offset, ack.prefix) == (Rejected, 3, [1, 2])
    assert "url" in str(error)
    assert [each.path for each in receiver.requests] == ["/in/k"]


@pytest.mark.parametrize("key", [b"...", b".a", b"%2e%2e"])
def test_dots_within_a_name_are_fine(make_writer: Open, key: bytes) -> None:
    """A key with dots inside a longer name is accepted."""
    with Receiver() as receiver:
        batch = entries([Message("n", b"1", key)])
        assert write(make_writer(receiver.url + "/{key}"), batch).complete


@pytest.mark.parametrize("status", [404, 410])
def test_what_is_gone_is_deleted(make_writer: Open, status: int) -> None:
    """A repeated DELETE that finds nothing succeeds, and a PUT that finds nothing is rejected."""
    deletion, change = Message("n", None, b"k", "delete"), Message("n", b"1", b"k", "update")
    with Receiver([Reply(status), Reply(status)]) as receiver:
        writer = make_writer(receiver.url + "/{key}", **PUT_AND_DELETE)
        assert write(writer, entries([deletion])).complete
        assert isinstance(failure(write(writer, entries([change]))), Rejected)


def test_a_receiver_that_lacks_one_of_several_names_none(make_writer: Open) -> None:
    """A 404 to a DELETE of several entries names none, and each is then tried by itself."""
    batch = entries([Message("n", None, b"k", "delete"), Message("n", None, b"l", "delete")])
    with Receiver([Reply(404)]) as receiver:
        ack = write(make_writer(receiver.url, method="DELETE"), batch)
        assert ack.failures[0][1] is None
        assert isinstance(failure(ack), Rejected)
        assert ack.prefix == []


@pytest.mark.parametrize("form", ["entries", "data"])
def test_bodies_are_compressed(make_writer: Open, form: str) -> None:
    """A compressed body has the same content, ids and keys, and an empty one stays empty."""
    batch = entries([Message("n", b'"%s"' % (b"x" * 10_000)), Message("n", None, b"k", "delete")])
    with Receiver() as plain, Receiver() as packed:
        assert write(make_writer(plain.url, format=form), batch).complete
        assert write(make_writer(packed.url, format=form, compression="gzip"), batch).complete
    for one, other in zip(plain.requests, packed.requests, strict=True):
        headers = {**other.headers, "content-length": str(len(one.body))}
        if one.body:
            assert headers.pop("content-encoding") == "gzip"
            assert len(other.body) < 1000
            assert gzip.decompress(other.body) == one.body
        headers["host"] = one.headers["host"]
        assert (headers, bool(other.body)) == (one.headers, bool(one.body))


def test_a_literal_part_of_the_url_stays_hidden(make_writer: Open) -> None:
    """An error redacts the literal parts of a URL with fields, but not the entry's own."""
    echo = Reply(400, body=b"no /in/k?sig=s3cr3tsig&of=k here")
    with Receiver([echo, OK]) as receiver:
        writer = make_writer(receiver.url + "/{key}?sig=s3cr3tsig&of={key}")
        error = failure(write(writer, entries([Message("n", b"1", b"k")])))
    assert "s3cr3tsig" not in str(error)
    assert "no ***k***k here" in str(error)
