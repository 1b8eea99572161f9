"""Small files of a log directory: one line of JSON and one with its checksum. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeVar

from crc32c import crc32c

from transporter.errors import Corrupt, UnknownFormat

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

FORMAT: Final = 1


def encode(fields: dict[str, Any]) -> bytes:
    """Return the bytes of a file that holds *fields*."""
    body = json.dumps({"format": FORMAT, **fields}).encode()
    return b"%s\n%08x\n" % (body, crc32c(body))


def decode(
    data: bytes, file: str, description: str, remedy: str, parse: Callable[[dict[str, Any]], T]
) -> T:
    """Decode *data* and return the result of *parse* on its fields.

    Args:
        data: the return value of :func:`encode`.
        file: its path, for errors.
        description: the name of the file, for errors.
        remedy: the next step after damage, for errors.
        parse: raises ``LookupError``, ``TypeError`` or ``ValueError`` for fields that no engine
            writes. A checksum proves the absence of damage, not the author (Invariant 17).

    Raises:
        Corrupt: it is damaged.
        UnknownFormat: another version wrote it.

    """
    body, _, checksum = data.partition(b"\n")
    if checksum.strip() != b"%08x" % crc32c(body):
        raise Corrupt(f"{description} does not match its checksum; {remedy}", file, 0)
    try:
        fields = json.loads(body)
        if (version := fields.pop("format")) != FORMAT:
            raise UnknownFormat(
                f"{file}: format version {version}, but this transporter reads version {FORMAT}; "
                "use the version that wrote this file, or one that can read it"
            )
        return parse(fields)
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise Corrupt(f"{description} cannot be read; {remedy}", file, 0) from error
