"""Log sequence numbers: byte positions in PostgreSQL's write-ahead log, as integers."""

from __future__ import annotations

import re
from typing import Final, TypeAlias

Lsn: TypeAlias = int
"""A position in the write-ahead log. It fits in 64 bits without a sign."""

_TEXT: Final = re.compile("([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_MOST: Final = (1 << 64) - 1


def format_lsn(lsn: Lsn) -> str:
    """Return *lsn* as PostgreSQL writes it, such as ``0/16B3748``."""
    if not 0 <= lsn <= _MOST:
        raise ValueError(f"{lsn} is not an LSN; use a number from 0 to 2^64 - 1")
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> Lsn:
    """Return the LSN that *text* is, with or without leading zeros.

    Raises:
        ValueError: The text is not an LSN.
    """
    if (found := _TEXT.fullmatch(text)) is None:
        raise ValueError(f"{text[:100]!r} is not an LSN; use two hex numbers such as 0/16B3748")
    return int(found[1], 16) << 32 | int(found[2], 16)
