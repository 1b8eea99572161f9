"""Entries as plain values, the same for the commands' ``--json`` and the console's JSON."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from transporter.bytes_as_json import text_or_base64

if TYPE_CHECKING:
    from transporter.message import Entry, Message

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def entry_json(entry: Entry, *, confirmed: int) -> dict[str, Any]:
    """Return *entry* as plain values."""
    return {
        "offset": entry.offset,
        "logged_at": time_text(entry.logged_at),
        "unconfirmed": entry.offset > confirmed,
        **message_json(entry.message),
    }


def message_json(message: Message) -> dict[str, Any]:
    """Return *message* as plain values. Bytes that are not UTF-8 become ``{"base64": …}``."""
    return {
        "namespace": message.namespace,
        "op": message.op,
        "phase": message.phase,
        "key": text_or_base64(message.key),
        "timestamp": time_text(message.timestamp),
        "source_id": message.source_id,
        "content_type": message.content_type,
        "headers": [[name, text_or_base64(value)] for name, value in message.headers],
        "data": text_or_base64(message.data),
    }


def time_text(microseconds: int) -> str:
    """Return a time in µs UTC as text, or its number if it is outside the calendar."""
    with suppress(OverflowError):
        return (EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="milliseconds")
    return f"{microseconds} µs"
