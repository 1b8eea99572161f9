"""Layout of entries in the database: keys, values and the record of a route's progress."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from transporter.adaptor import StoredOffset
from transporter.bytes_as_json import text_or_base64

if TYPE_CHECKING:
    from transporter.message import Entry

MAX_KEY: Final = 511
"""Maximum of LMDB. A longer key ends in a digest of the whole."""

LATEST: Final = b"latest"
"""Database of the newest data of each key: ``<namespace> 0x00 <key>`` → data."""

PROGRESS: Final = b"progress"
"""Database of ``<route>/<shard>`` → a JSON object, see :class:`StoredProgress`."""


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def entries_database(route: str) -> bytes:
    """Return the name of the database of whole entries: 8-byte big-endian offset → JSON."""
    return b"entries/" + route.encode()


def latest_key(namespace: str, key: bytes) -> bytes:
    """Return the stored key of *key*'s newest data.

    A key that is too long keeps its beginning and ends in a SHA-256 of the whole, so
    that a scan of a namespace still finds it.
    """
    full = namespace.encode() + b"\0" + key
    if len(full) <= MAX_KEY:
        return full
    return full[: MAX_KEY - 32] + hashlib.sha256(full).digest()


def offset_key(offset: int) -> bytes:
    """Return the stored key of a whole entry. It sorts as the offsets do."""
    return offset.to_bytes(8, "big")


def whole_entry(entry: Entry) -> bytes:
    """Return *entry* as JSON in UTF-8.

    Times are µs since 1970, bytes as in :func:`text_or_base64`.
    """
    message = entry.message
    return _ENCODER.encode(
        {
            "offset": entry.offset,
            "logged_at": entry.logged_at,
            "namespace": message.namespace,
            "op": message.op,
            "phase": message.phase,
            "key": text_or_base64(message.key),
            "timestamp": message.timestamp,
            "source_id": message.source_id,
            "content_type": message.content_type,
            "headers": [[name, text_or_base64(value)] for name, value in message.headers],
            "data": text_or_base64(message.data),
        }
    ).encode()


@dataclass(frozen=True, slots=True)
class StoredProgress:
    """The progress of a route's shard, and the number of entries that it wrote in all.

    ``entries`` counts every delivery since the database was made. A repeated
    one counts again.
    """

    stored: StoredOffset
    entries: int

    def encode(self) -> bytes:
        """Return the JSON object that :meth:`decode` reads."""
        return json.dumps({**asdict(self.stored), "entries": self.entries}).encode()

    @classmethod
    def decode(cls, text: bytes) -> StoredProgress:
        """Parse the JSON object of :meth:`encode`."""
        fields: dict[str, Any] = json.loads(text)
        entries = fields.pop("entries")
        return cls(StoredOffset(**fields), entries)
