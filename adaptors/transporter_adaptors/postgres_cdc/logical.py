"""Entries from logical messages: an outbox without a table. Pure.

An application writes such a message in its own transaction, by ``transporter.outbox.emit`` or::

    SELECT pg_logical_emit_message(true, 'transporter',
        '{"namespace": "orders", "key": "42", "headers": [["a", "b"]], "data": {"total": 9.90}}')
"""

from __future__ import annotations

import json
from json.decoder import JSONDecoder
from typing import TYPE_CHECKING, Any, Final

from transporter.message import ERROR_HEADER, JSON, Message

if TYPE_CHECKING:
    from transporter_adaptors.postgres_cdc.config import MessageItem
    from transporter_adaptors.postgres_cdc.entries import Place
    from transporter_adaptors.postgres_cdc.messages import LogicalMessage

_decode_at: Final = JSONDecoder().raw_decode
_KNOWN: Final = ("namespace", "key", "headers", "data", "value")
_BLANK: Final = " \t\n\r"


def logical_entry(message: LogicalMessage, item: MessageItem, place: Place) -> Message:
    """Return the entry of *message*, which *item* of the settings selects.

    A document that is not a record becomes an entry with the whole content as data and the problem
    in a ``transporter-error`` header.
    """
    fallback = item.namespace or item.prefix
    if item.format == "raw":
        return _entry(fallback, message.content, None, place, content_type=None)
    try:
        namespace, key, data, headers = _record_of(message.content)
    except ValueError as error:
        problem = (
            f"the logical message at {place.source_id} is not a record: {error}; write a JSON "
            'object such as {"namespace": "orders", "key": "42", "data": {}}'
        )
        headers = ((ERROR_HEADER, problem.encode(errors="backslashreplace")),)
        return _entry(fallback, message.content, None, place, headers, content_type=None)
    return _entry(namespace, data, key, place, headers)


def _entry(
    namespace: str,
    data: bytes | None,
    key: bytes | None,
    place: Place,
    headers: tuple[tuple[str, bytes], ...] = (),
    *,
    content_type: str | None = JSON,
) -> Message:
    return Message(
        namespace,
        data,
        key,
        "delete" if data is None else "insert",
        "sync",
        place.committed_at,
        place.source_id,
        content_type if data is not None else None,
        headers,
    )


def _record_of(
    content: bytes,
) -> tuple[str, bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]:
    """Return namespace, key, data and headers of a record.

    Raises:
        ValueError: it is not one; the text says why.

    """
    members = _members_of(content)
    if unknown := members.keys() - set(_KNOWN):
        raise ValueError(f"it has the unknown field {min(unknown)}")
    if "data" in members and "value" in members:
        raise ValueError("it has data and value")
    namespace = _text_in(members, "namespace")
    if not namespace:
        raise ValueError("it has no namespace")
    key = _text_in(members, "key")
    value = _text_in(members, "value")
    decoded, text = members.get("data", (None, ""))
    if value is not None:
        decoded, text = value, value
    data = None if decoded is None else text.encode()
    return namespace, key.encode() if key is not None else None, data, _headers_in(members)


def _members_of(content: bytes) -> dict[str, tuple[Any, str]]:
    """Return the members of a JSON object: the value of each, and its text as it is there."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    at, found = _skip(text, 0), dict[str, tuple[Any, str]]()
    if text[at : at + 1] != "{":
        raise ValueError("it is not a JSON object")
    at = _skip(text, at + 1)
    is_end = text[at : at + 1] == "}"
    while not is_end:
        name, at = _decode(text, at)
        at = _skip(text, at)
        if not isinstance(name, str) or text[at : at + 1] != ":":
            raise ValueError(f"a name and a colon are expected at character {at}")
        begin = _skip(text, at + 1)
        value, at = _decode(text, begin)
        if name in found:
            raise ValueError(f"it has the field {name} twice")
        found[name] = (value, text[begin:at])
        at = _skip(text, at)
        is_end = text[at : at + 1] == "}"
        if not is_end:
            if text[at : at + 1] != ",":
                raise ValueError(f"a comma or a brace is expected at character {at}")
            at = _skip(text, at + 1)
    if _skip(text, at + 1) != len(text):
        raise ValueError(f"there is more behind the object at character {at + 1}")
    return found


def _decode(text: str, at: int) -> tuple[Any, int]:
    try:
        return _decode_at(text, at)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON at character {error.pos}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in _BLANK:
        at += 1
    return at


def _text_in(members: dict[str, tuple[Any, str]], name: str) -> str | None:
    value, _ = members.get(name, (None, ""))
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} is not a text")
    return None if value is None else _checked(value, name)


def _checked(text: str, name: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{name} has half of a surrogate pair") from None
    return text


def _headers_in(members: dict[str, tuple[Any, str]]) -> tuple[tuple[str, bytes], ...]:
    value, _ = members.get("headers", ([], ""))
    pairs = list(value.items()) if isinstance(value, dict) else value
    wrong = "headers is not an object of texts or an array of pairs of texts"
    found = []
    for pair in pairs if isinstance(pairs, list) else [None]:
        if not isinstance(pair, list | tuple) or [*map(type, pair)] != [str, str]:
            raise ValueError(wrong)
        name, text = (_checked(each, "a header") for each in pair)
        found.append((name, text.encode()))
    return tuple(found)
