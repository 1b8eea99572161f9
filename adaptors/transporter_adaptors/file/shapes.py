"""Entries as lines of text."""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NoReturn

from transporter.bytes_as_json import text_or_base64

if TYPE_CHECKING:
    from transporter.message import Entry


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse_constant)
# Made once: json.dumps and json.loads make a new one for every call with settings.

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_TERMINAL: Final = re.compile("[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal may take for a command, and that JSON allows unescaped."""

_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]|\xc2[\x80-\x9f]")


def json_line(entry: Entry) -> bytes:
    """Return the whole *entry* as one line of JSON, without the line's end.

    Data that are JSON stay as they are, digit for digit. Other data become
    ``text`` when they are UTF-8 and ``base64`` when they are not. A tombstone has
    none of the three. No byte of the line is a control character.
    """
    message = entry.message
    head = {
        "offset": entry.offset,
        "namespace": message.namespace,
        "op": message.op,
        "phase": message.phase,
        "key": text_or_base64(message.key),
        "timestamp": _iso_time(message.timestamp),
        "logged_at": _iso_time(entry.logged_at),
        "source_id": message.source_id,
        "headers": [[name, text_or_base64(value)] for name, value in message.headers],
    }
    line = _ENCODER.encode(head)[:-1] + _data_json(message.data)
    if line.isascii() and "\x7f" not in line:
        return line.encode()
    return _TERMINAL.sub(lambda found: f"\\u{ord(found[0]):04x}", line).encode()


def data_line(entry: Entry, *, terminal: bool) -> bytes:
    r"""Return the data of *entry* and nothing else, empty for a tombstone.

    For a *terminal* control characters are written as ``\x1b`` and the like.
    Otherwise the bytes are untouched, so data with line ends take several lines.
    """
    data = entry.message.data or b""
    if not terminal:
        return data
    return _CONTROL.sub(lambda found: b"".join(b"\\x%02x" % byte for byte in found[0]), data)


def _data_json(data: bytes | None) -> str:
    if data is None:
        return "}"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f',"base64":"{base64.b64encode(data).decode()}"}}'
    if _is_json(text):
        # Line ends have no meaning between JSON tokens, and cannot occur inside JSON strings.
        one_line = text.replace("\n", " ").replace("\r", " ")
        return f',"data":{one_line}}}'
    return f',"text":{_ENCODER.encode(text)}}}'


def _is_json(text: str) -> bool:
    try:
        _DECODER.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def _iso_time(microseconds: int) -> str:
    moment = _EPOCH + timedelta(microseconds=microseconds)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
