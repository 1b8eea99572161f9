"""Record of the outbox: an event of the application."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, cast

LONGEST_TOPIC: Final = 249
"""Maximum number of characters of a topic, in Kafka and in the table's column."""
MOST_BYTES: Final = 8_000_000
"""Maximum size of a record in UTF-8 bytes, with a margin to the limit of the engine's log."""
_PER_HEADER: Final = 16
"""Bytes of a header in the log besides its text."""

Headers = Mapping[str, str] | Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Record:
    """One event, validated on construction and immutable.

    The constructor does not check that *value* is JSON. :meth:`json` ensures it.

    Attributes:
        topic: The namespace that routes filter by, and the topic of the ``kafka``
            writer unless that names one.
        key: Records of one key keep their order.
        value: JSON as text; ``None`` is a tombstone, which deletes the key.
        headers: Pairs in order, whose names may repeat, or a mapping.

    Raises:
        TypeError: If the table or the engine's log would refuse a value's type. The
            text names the correct form.
        ValueError: If they would refuse a value. The text names the correct form.
    """

    topic: str
    key: str
    value: str | None
    headers: Headers = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "headers", _header_pairs(self.headers))
        size = _check_text("topic", self.topic)
        size += _check_text("key", self.key)
        if self.value is not None:
            size += _check_text("value", self.value)
        for name, value in self.pairs:
            size += _check_text("a header's name", name) + _check_text(f"header {name!r}", value)
        if not 0 < len(self.topic) <= LONGEST_TOPIC:
            raise ValueError(f"topic has {len(self.topic)} characters; use 1 to {LONGEST_TOPIC}")
        if size + _PER_HEADER * len(self.pairs) > MOST_BYTES:
            raise ValueError(
                f"the record of key {self.key[:100]!r} has {size} bytes, and the log's limit is "
                f"{MOST_BYTES}; store the large part elsewhere and a reference to it here"
            )

    @classmethod
    def json(cls, topic: str, key: str, document: Any, headers: Headers = ()) -> Self:  # noqa: ANN401 - any JSON value
        """Return a record whose value is *document* as JSON.

        Raises:
            TypeError: If JSON cannot represent a type, such as dates and decimals.
            ValueError: If JSON cannot represent a value, such as NaN and infinities.
        """
        text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return cls(topic, key, text, headers)

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The headers as pairs."""
        return cast("tuple[tuple[str, str], ...]", self.headers)


def _header_pairs(headers: object) -> tuple[tuple[str, str], ...]:
    found = headers.items() if isinstance(headers, Mapping) else headers
    wrong = "headers must be pairs of str, as in [('trace', '7')], or a mapping"
    if isinstance(found, str | bytes) or not isinstance(found, Iterable):
        raise TypeError(f"{wrong}, not {type(headers).__name__}")
    pairs = tuple(found)
    for pair in pairs:
        if not (isinstance(pair, tuple | list) and len(pair) == 2):  # noqa: PLR2004 - a pair
            raise TypeError(f"{wrong}; one of them is {type(pair).__name__}")
    return tuple((name, value) for name, value in pairs)


def _check_text(what: str, text: object) -> int:
    """Return the size of *text* in UTF-8, or refuse it if a table cannot store it."""
    if not isinstance(text, str):
        raise TypeError(f"{what} must be str, not {type(text).__name__}{_suggestion(what, text)}")
    if "\0" in text:
        raise ValueError(
            f"{what} contains a NUL character, which PostgreSQL cannot store; remove it"
        )
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} contains half of a surrogate pair at character {error.start}, which is not "
            "text; remove it"
        ) from error


def _suggestion(what: str, value: object) -> str:
    if what == "key" and value is None:
        return "; order is kept per key, so use the id of the changed object"
    if what == "value":
        return "; Record.json(topic, key, document) writes a document as JSON"
    if value is None:
        return ""
    return "; decode it" if isinstance(value, bytes) else "; convert it with str(...)"
