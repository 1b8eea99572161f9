"""Messages that are legal and that careless adaptors damage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.message import Entries, Message, messages_to_batch, with_offsets

if TYPE_CHECKING:
    from collections.abc import Sequence

_TIME = 1_700_000_000_123_456


def hostile_messages() -> list[Message]:
    """Return messages whose every part must arrive as it is."""
    name = "orders.placed"
    return [
        Message(name, b'{"b": 1, "a": 12345678901234567890.10}', b"k1", timestamp=_TIME),
        Message(name, None, b"k1", op="delete", timestamp=_TIME + 1),
        Message(name, b"", b"", content_type=None, timestamp=_TIME + 2),
        Message(name, b"\x00\xff\xfe\x80", b"\x00\xff", content_type=None, timestamp=_TIME + 3),
        Message(name, '{"né": "☃ 𝄞 \\u0000"}'.encode(), "clé ☃".encode(), timestamp=_TIME + 4),
        Message(name, b'{"line":\r\n "break\\n"}', b"a\nb", timestamp=_TIME + 5),
        Message(name, b"\x1b[2J\x07not json", None, content_type=None, timestamp=_TIME + 6),
        Message(name, b"null", None, op="update", phase="copy", timestamp=_TIME + 7),
        Message(
            name,
            b'"headers"',
            b"k2",
            timestamp=_TIME + 8,
            source_id="table/1",
            headers=(("same", b"1"), ("same", b"2"), ("", b""), ("none", None), ("é", b"\xff")),
        ),
        Message(name, b'"' + b"x" * 100_000 + b'"', b"big", timestamp=_TIME + 9),
    ]


def entries(messages: Sequence[Message], first: int = 1, log_id: str = "log-1") -> Entries:
    """Return *messages* as logged entries, with dense offsets from *first* on."""
    return Entries(with_offsets(messages_to_batch(messages), first, _TIME), log_id)
