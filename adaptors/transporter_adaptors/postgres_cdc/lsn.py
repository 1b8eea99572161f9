"""Log sequence numbers of PostgreSQL: integers in code, ``16/B374D848`` in text."""

from __future__ import annotations

import re
from typing import Final

_LSN: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def format_lsn(lsn: int) -> str:
    """Return *lsn* as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """Return the number that *text* stands for. Raise ``ValueError`` if it is not an LSN."""
    found = _LSN.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not an LSN such as 16/B374D848")
    return int(found[1], 16) << 32 | int(found[2], 16)
