"""The HTTP writer against a faulty receiver."""

from __future__ import annotations

import logging
import socket
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from http_tools import (
    LOCALHOST,
    OK,
    Receiver,
    Reply,
    failure,
    ids_of,
    localhost_tls,
    numbered,
    write,
)
from transporter_adaptors.http.answers import Answer
from transporter_adaptors.http.client import MOST_READ

from transporter.errors import Rejected, RouteFault, SinkError, SinkTimeout, SinkUnavailable
from transporter.message import ENTRY_SCHEMA, Entries, Message
from transporter.testing import entries
from transporter.worker.delivery import Acks

if TYPE_CHECKING:
    from pathlib import Path

    from http_tools import Open, Request


def test_a_batch_is_one_request_with_what_the_settings_say(make_writer: Open) -> None:
    """Method, path with its query, headers and ids arrive as configured."""
    with Receiver() as receiver:
        url = receiver.url + "/a%20b?c=d"
        writer = make_writer(url, method="PUT", headers={"Authorization": "Bearer x", "X-A": "b"})
        assert write(writer, numbered(3)).complete
    (request,) = receiver.requests
    assert (request.method, request.path) == ("PUT", "/in/a%20b?c=d")
    assert ids_of(request) == ["log-1/1", "log-1/2", "log-1/3"]
    assert (
        request.headers.items()
        >= {
            "authorization": "Bearer x",
            "x-a": "b",
            "user-agent": "transporter",
            "content-type": "application/json",
            "accept-encoding": "identity",
            "host": f"127.0.0.1:{receiver.port}",
        }.items()
    )
    assert request.headers["idempotency-key"].startswith('"log-1/route/0/1-3/')


def test_the_first_failure_ends_the_slice(make_writer: Open) -> None:
    """Entries answered with 2xx before a failure are acked, and nothing behind it is sent."""
    with Receiver([OK, Reply(503)]) as receiver:
        ack = write(make_writer(receiver.url, batch_rows=2), numbered(7))
    assert ack.prefix == [1, 2]
    assert [(type(error), offset) for error, offset in ack.failures] == [(SinkUnavailable, None)]
    assert [ids_of(each)[0] for each in receiver.requests] == ["log-1/1", "log-1/3"]


@pytest.mark.parametrize(("rows", "named"), [(2, None), (1, 3)])
def test_a_refused_request_names_its_entry_when_it_has_one(
    make_writer: Open, rows: int, named: int | None
) -> None:
    """A refused batch names no entry, and a refused request of one entry names it."""
    script = [OK] * (3 - rows) + [Reply(400, body=b"bad n")]
    with Receiver(script) as receiver:
        ack = write(make_writer(receiver.url, batch_rows=rows), numbered(5))
    ((error, offset),) = ack.failures
    assert ack.prefix == [1, 2]
    assert isinstance(error, Rejected)
    assert (error.offset, offset) == (named, named)
    assert 'answered 400 Bad Request "bad n"' in str(error)


@pytest.mark.parametrize("delivered", [1, 2])
def test_an_entry_is_acked_when_all_that_steps_made_of_it_arrived(
    make_writer: Open, delivered: int
) -> None:
    """An entry with several outputs is acked only after all of them arrived."""
    batch = entries([Message("n", b"%d" % n) for n in range(5)]).batch
    offsets = pa.array([1, 2, 2, 2, 3], pa.int64())
    made = Entries(batch.set_column(0, ENTRY_SCHEMA.field("offset"), offsets), "log-1")
    acks = Acks(made.offsets)
    with Receiver([*[OK] * (1 + delivered), Reply(503)]) as receiver:
        make_writer(receiver.url, batch_rows=1).write(made, acks)
        count, _ = acks.result()
        assert count == 1
        again = Acks(made.offsets)
        make_writer(receiver.url, batch_rows=2).write(made, again)
        assert again.result() == (5, None)


RESETS = {
    "in the middle of the request": {"early": True},
    "without an answer": {"decide": [Reply(after=0)]},
    "within the status": {"decide": [Reply(after=10)]},
    "within the headers": {"decide": [Reply(after=20)]},
    "within the body": {"decide": [Reply(body=b"x" * 100, after=90)]},
    "by a close within the body": {
        "decide": [Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", close=True)]
    },
    "by a close within a chunk": {
        "decide": [
            Reply(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nx", close=True)
        ]
    },
    "by a close without an answer": {"decide": [Reply(raw=b"", close=True)]},
    "with what is no HTTP": {"decide": [Reply(raw=b"SSH-2.0-x\r\n\r\n")]},
    "with too long a header": {
        "decide": [Reply(raw=b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n")]
    },
}


@pytest.mark.parametrize("how", sorted(RESETS))
def test_an_answer_that_does_not_come_to_its_end_is_no_ack(make_writer: Open, how: str) -> None:
    """A connection that breaks anywhere is unavailable, even after a 200, and then goes on."""
    settings = RESETS[how]
    if "early" in settings:
        once = iter([True])
        settings = {"early": lambda: next(once, False)}
    body = entries([Message("n", b'"%s"' % (b"x" * 3_000_000), b"k")])
    with Receiver(**settings) as receiver:
        writer = make_writer(receiver.url)
        ack = write(writer, body)
        assert ack.prefix == []
        assert isinstance(failure(ack), SinkUnavailable), failure(ack)
        assert write(writer, body).complete
    ids = [ids_of(each) for each in receiver.requests]
    assert ids == [["log-1/1"]] * (1 if "early" in settings else 2)
    assert len({each.headers["idempotency-key"] for each in receiver.requests}) == 1


@pytest.mark.parametrize(("status", "expected"), [(413, Rejected), (200, SinkUnavailable)])
def test_a_receiver_may_refuse_what_it_has_not_read(
    make_writer: Open, status: int, expected: type[SinkError]
) -> None:
    """An answer to half a request may be a refusal, but never an ack."""
    body = entries([Message("n", b'"%s"' % (b"x" * 30_000_000))])
    once = iter([Reply(status, body=b"well")])
    with Receiver(early=lambda: next(once, False)) as receiver:
        writer = make_writer(receiver.url)
        error = failure(write(writer, body))
        assert isinstance(error, expected), error
        assert write(writer, body).complete
        assert receiver.connections == 2


def test_a_receiver_that_is_not_there_is_waited_for(make_writer: Open) -> None:
    """A refused connection, and a name that cannot be resolved, are unavailable."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for url, words in (
        (f"http://127.0.0.1:{port}/", "Connection refused"),
        ("http://nowhere.invalid/", ""),
    ):
        error = failure(write(make_writer(url), numbered(1)))
        assert isinstance(error, SinkUnavailable)
        assert words in str(error)
        assert "HTTPConnection" not in str(error)


STALLS = {
    "no answer": Reply(hold=True),
    "an answer byte by byte": Reply(body=b"x" * 1000, drip=0.05),
    "a last answer byte by byte": Reply(raw=b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 1000, drip=0.02),
    "nothing but 100 Continue": Reply(raw=b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, drip=0.01),
}


@pytest.mark.parametrize("how", sorted(STALLS))
def test_a_receiver_that_hangs_is_a_timeout(make_writer: Open, how: str) -> None:
    """A request ends in its time, however slow the answer, and the next one is fresh."""
    with Receiver([STALLS[how]]) as receiver:
        writer = make_writer(receiver.url, timeout=0.3)
        begun = time.monotonic()
        ack = write(writer, numbered(1))
        assert time.monotonic() - begun < 10  # Without the limit, 20 s or more.
        assert ack.prefix == []
        assert isinstance(failure(ack), SinkTimeout)
        assert str(failure(ack)).endswith("no answer within 0.3 s")
        writer._timeout = 10.0  # Enough on a busy machine.
        assert write(writer, numbered(1)).complete
        assert receiver.connections == 2
    first, second = receiver.requests
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]


def test_a_receiver_that_does_not_read_is_a_timeout(make_writer: Open) -> None:
    """A request that cannot be sent in time ends with a timeout."""
    body = entries([Message("n", b'"%s"' % (b"x" * 30_000_000))])
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        writer = make_writer(f"http://127.0.0.1:{deaf.getsockname()[1]}/", timeout=0.3)
        assert isinstance(failure(write(writer, body)), SinkTimeout)


def test_a_name_that_is_not_resolved_in_time_is_a_timeout(
    make_writer: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hanging name resolution is abandoned, is not repeated, and sends nothing later."""
    resolved, asked, real = threading.Event(), [], socket.getaddrinfo

    def slow(*arguments: Any, **named: Any) -> Any:
        asked.append(arguments)
        resolved.wait(20)
        return real(*arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with Receiver() as receiver:
        writer = make_writer(receiver.url, timeout=0.2)
        errors = [failure(write(writer, numbered(1))) for _ in range(2)]
        assert [type(error) for error in errors] == [SinkTimeout] * 2
        assert len(asked) == 1
        resolved.set()
        writer._timeout = 10.0
        assert write(writer, numbered(1)).complete
        assert len(receiver.requests) == 1


def test_no_request_is_begun_that_might_not_end_before_the_deadline(
    make_writer: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice that takes too long ends with its acks, and without half a request."""
    now = [100.0]
    monkeypatch.setattr(
        "transporter_adaptors.http.writer.time", SimpleNamespace(monotonic=lambda: now[0])
    )

    def take_three_seconds(_: Request) -> Reply:
        now[0] += 3
        return OK

    with Receiver(take_three_seconds) as receiver:
        writer = make_writer(receiver.url, deadline=20.0, timeout=5.0, batch_rows=1)
        ack = write(writer, numbered(50))
        assert isinstance(failure(ack), SinkTimeout)
        # The sixth begins after 15 s and may take 5. The seventh would begin after 18.
        assert len(ack.prefix) == len(receiver.requests) == 6


@pytest.mark.parametrize(("timeout", "expected"), [(7.0, 7.0), (60.0, 10.0)])
def test_a_request_takes_at_most_half_the_deadline(
    make_writer: Open, monkeypatch: pytest.MonkeyPatch, timeout: float, expected: float
) -> None:
    """A request's time is the setting, but at most half of the deadline."""
    told: list[float] = []

    def send(*arguments: Any) -> Answer:
        told.append(arguments[-1])
        return Answer(200, {}, b"")

    monkeypatch.setattr("transporter_adaptors.http.client.Client.send", send)
    assert write(make_writer("http://127.0.0.1:1/", timeout=timeout), numbered(1)).complete
    assert told == [pytest.approx(expected, abs=1)]


def test_a_connection_is_kept(make_writer: Open) -> None:
    """Requests and slices share one connection after any complete answer."""
    answers = [
        OK,
        Reply(204, body=b""),
        Reply(200, body=b"x" * 60_000),
        Reply(500, body=b"busy"),
        Reply(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"),
    ]
    with Receiver(answers) as receiver:
        writer = make_writer(receiver.url)
        for _ in range(6):
            write(writer, numbered(1))
        assert [each.connection for each in receiver.requests] == [1] * 6


def test_an_answer_that_nobody_asked_for_acks_nothing(make_writer: Open) -> None:
    """The second of two answers to one request is not used for the next request."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    with Receiver([Reply(raw=answer * 2), Reply(503)]) as receiver:
        writer = make_writer(receiver.url)
        assert write(writer, numbered(1)).complete
        assert "answered 503" in str(failure(write(writer, numbered(1, 2))))


def test_a_process_without_room_for_a_thread_waits(
    make_writer: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a thread the sink is unavailable, and no entry is to blame."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Receiver() as receiver:
        writer = make_writer(receiver.url)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            error = failure(write(writer, numbered(1)))
        assert isinstance(error, SinkUnavailable)
        assert "can't start new thread" in str(error)
        assert write(writer, numbered(1)).complete


def test_a_connection_that_was_closed_meanwhile_is_made_anew(make_writer: Open) -> None:
    """A kept connection that the receiver has closed costs no failure and no second request."""
    with Receiver([Reply(close=True)]) as receiver:
        writer = make_writer(receiver.url)
        assert write(writer, numbered(1)).complete
        receiver.await_closed()
        assert write(writer, numbered(1, 2)).complete
        assert [(ids_of(each), each.connection) for each in receiver.requests] == [
            (["log-1/1"], 1),
            (["log-1/2"], 2),
        ]


@pytest.mark.parametrize("length", [MOST_READ + 8192, 500_000])
def test_of_a_large_answer_only_the_beginning_is_read(make_writer: Open, length: int) -> None:
    """An endless body costs neither memory nor the ack, and does not mix with the next answer."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 90000000\r\n\r\n"
    with Receiver([Reply(raw=head + b"x" * length)]) as receiver:
        writer = make_writer(receiver.url)
        assert write(writer, numbered(1)).complete
        assert write(writer, numbered(1, 2)).complete
        assert [each.connection for each in receiver.requests] == [1, 2]


@pytest.mark.parametrize(
    ("status", "asked", "wait"),
    [
        (429, "3600", 300.0),
        (429, "120", 120.0),
        (503, "Sun, 22 Nov 2099 02:00:00 GMT", 300.0),
        (500, "60", 60.0),
        (408, "60", 60.0),
    ],
)
def test_a_receiver_that_asks_to_be_left_alone_is(
    make_writer: Open, status: int, asked: str, wait: float
) -> None:
    """Nothing is sent before a Retry-After has passed, up to its cap."""
    with Receiver([Reply(status, (("Retry-After", asked),))]) as receiver:
        writer = make_writer(receiver.url)
        assert "answered" in str(failure(write(writer, numbered(1))))
        assert 0 < wait - (writer._not_before - time.monotonic()) < 30
        for _ in range(3):
            error = failure(write(writer, numbered(1)))
            assert isinstance(error, SinkUnavailable)
            assert "asked for a pause of" in str(error)
        assert len(receiver.requests) == 1
        writer._not_before = time.monotonic()  # As if it were over.
        assert write(writer, numbered(1)).complete


class Clock:
    """A clock that advances during sleep, in the writer's place of ``time``."""

    def __init__(self) -> None:
        self.now, self.slept = 1000.0, []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_a_short_rest_is_waited_for_without_a_word(
    make_writer: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Retry-After of up to five seconds is slept through, and then the entries are delivered."""
    clock = Clock()
    monkeypatch.setattr("transporter_adaptors.http.writer.time", clock)
    with Receiver([Reply(429, (("Retry-After", "5"),))]) as receiver:
        writer = make_writer(receiver.url)
        assert "answered 429" in str(failure(write(writer, numbered(1))))
        clock.now += 0.5
        assert write(writer, numbered(1)).complete
        assert write(writer, numbered(1, 2)).complete
    assert clock.slept == [4.5]


@pytest.mark.parametrize(
    ("asked", "later", "told"),
    [("6", 0.0, "of 6 s more"), ("6", 0.99, "of 5.1 s more"), ("5", 0.0, "of 5 s more")],
)
def test_a_rest_that_is_too_long_is_the_routes(
    make_writer: Open, monkeypatch: pytest.MonkeyPatch, asked: str, later: float, told: str
) -> None:
    """A pause longer than five seconds, or than the slice has, is reported, not slept through."""
    clock = Clock()
    monkeypatch.setattr("transporter_adaptors.http.writer.time", clock)
    with Receiver([Reply(429, (("Retry-After", asked),))]) as receiver:
        writer = make_writer(receiver.url, deadline=20.0 if asked == "6" else 9.0, timeout="4500ms")
        assert "answered 429" in str(failure(write(writer, numbered(1))))
        clock.now += later
        error = failure(write(writer, numbered(1)))
        assert isinstance(error, SinkUnavailable)
        assert told in str(error)
    assert clock.slept == []


@pytest.mark.parametrize("reply", [Reply(503), Reply(429, (("Retry-After", "9"),))])
def test_without_a_time_to_wait_for_the_route_decides(make_writer: Open, reply: Reply) -> None:
    """After an outage without a Retry-After, or with a cap of 0, the route decides the retry."""
    with Receiver([reply, reply]) as receiver:
        writer = make_writer(receiver.url, retry_after_max=0.0)
        for _ in range(2):
            assert "answered" in str(failure(write(writer, numbered(1))))
        assert write(writer, numbered(1)).complete


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize(
    "location", ["/there?x=1", "there?x=1", "{origin}/there?x=1", "//{host}/there?x=1#y"]
)
def test_a_redirect_to_the_same_origin_is_followed(
    make_writer: Open, status: int, location: str
) -> None:
    """307 and 308 repeat the request, method, body and headers, at the new path."""
    with Receiver() as receiver:
        host = f"127.0.0.1:{receiver.port}"
        there = location.format(origin=f"http://{host}", host=host)
        receiver.script(Reply(status, (("Location", there),)))
        writer = make_writer(receiver.url.removesuffix("in"), headers={"Authorization": "secret"})
        assert write(writer, numbered(2)).complete
    first, second = receiver.requests
    assert (first.path, second.path) == ("/", "/there?x=1")
    assert (second.method, second.body) == (first.method, first.body)
    assert second.headers == first.headers


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_nothing_is_sent_to_another_origin(make_writer: Open, status: int) -> None:
    """A redirect to another origin is the route's fault, and no entry or credential goes there."""
    with Receiver() as other, Receiver() as receiver:
        for there in (
            f"http://127.0.0.1:{other.port}/token-of-theirs",
            f"http://localhost:{receiver.port}/token-of-theirs",
            f"https://127.0.0.1:{receiver.port}/token-of-theirs",
            f"http://me:token-of-theirs@127.0.0.1:{receiver.port}/",
            "ftp://127.0.0.1/token-of-theirs",
            "http://[token-of-theirs",
        ):
            receiver.script(Reply(status, (("Location", there),)))
            writer = make_writer(receiver.url, headers={"Authorization": "secret"})
            error = failure(write(writer, numbered(1)))
            assert isinstance(error, RouteFault)
            assert "check" in str(error)
            assert "token-of-theirs" not in str(error)
        assert (other.connections, len(receiver.requests)) == (0, 6)


def test_redirects_come_to_an_end(make_writer: Open) -> None:
    """Redirects that lead in circles, or nowhere, are the route's fault."""
    with Receiver([Reply(307, (("Location", "/in"),))] * 9) as receiver:
        error = failure(write(make_writer(receiver.url), numbered(1)))
        assert isinstance(error, RouteFault)
        assert "redirected more than 3 times" in str(error)
        assert len(receiver.requests) == 4


def test_secrets_do_not_come_back(make_writer: Open, caplog: pytest.LogCaptureFixture) -> None:
    """A secret that a receiver repeats is in no error and no log line."""
    echo = b"you sent tok-0123456 to /in?sig=s3cr3tsig with opensesame"
    malformed = Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nno header\r\n\r\n")
    logging.getLogger("urllib3.connection").setLevel(logging.NOTSET)
    with Receiver([Reply(400, body=echo), malformed]) as receiver, caplog.at_level(logging.DEBUG):
        writer = make_writer(
            receiver.url + "?sig=s3cr3tsig",
            headers={"Authorization": "Bearer tok-0123456", "X-Api-Key": "opensesame"},
        )
        error = failure(write(writer, numbered(1)))
        write(writer, numbered(1))
    assert "you sent *** to *** with ***" in str(error)
    assert "s3cr3tsig" not in caplog.text


def test_a_receiver_with_a_trusted_certificate_is_written_to(make_writer: Open) -> None:
    """Entries arrive over TLS, on one connection, with the certificate as ca_file."""
    with Receiver(tls=localhost_tls()) as receiver:
        writer = make_writer(f"https://localhost:{receiver.port}/", ca_file=LOCALHOST)
        assert write(writer, numbered(3)).complete
        assert write(writer, numbered(3, 4)).complete
        assert [each.connection for each in receiver.requests] == [1, 1]


@pytest.mark.parametrize(("host", "ca_file"), [("localhost", None), ("127.0.0.1", LOCALHOST)])
def test_nobody_is_told_anything_without_a_certificate_that_is_trusted(
    make_writer: Open, host: str, ca_file: Path | None
) -> None:
    """With an unknown issuer, or another name, the sink is unavailable and nothing is sent."""
    with Receiver(tls=localhost_tls()) as receiver:
        writer = make_writer(f"https://{host}:{receiver.port}/", ca_file=ca_file)
        error = failure(write(writer, numbered(1)))
    assert isinstance(error, SinkUnavailable)
    assert "certificate is not trusted" in str(error)
    assert "ca_file" in str(error)
    assert receiver.requests == []


def test_a_receiver_that_speaks_no_tls_is_unavailable(make_writer: Open) -> None:
    """A plain receiver behind an https URL is never sent an entry."""
    with socket.create_server(("127.0.0.1", 0)) as plain:
        writer = make_writer(f"https://localhost:{plain.getsockname()[1]}/", timeout=0.3)
        assert isinstance(failure(write(writer, numbered(1))), SinkTimeout)


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_a_ca_file_that_cannot_be_used_is_the_routes_fault(
    make_writer: Open, tmp_path: Path, content: bytes | None
) -> None:
    """A missing, empty or broken file of certificates is reported at the open, by its name."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RouteFault, match=r"ca\.pem: .* ca_file must be"):
        make_writer("https://localhost:1/", ca_file=path)
