"""PostgreSQL connection strings: a parser that refuses those which libpq would misread.

It also recognises refusals by the server that only another string, or another setup, changes.
"""

from __future__ import annotations

import re
from typing import Any, Final

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

_PORTS: Final = re.compile(r"[0-9]*(,[0-9]*)*")
_REFUSED: Final = re.compile(
    r'(role|database) ".*" does not exist|(password|peer|ident) authentication failed|no password '
    r"supplied|no pg_hba\.conf entry|pg_hba\.conf rejects|is not permitted to log in"
)


def parse_dsn(dsn: str) -> dict[str, Any]:
    """Return the parts of *dsn* by name.

    Raises:
        ValueError: If *dsn* is not a connection string, or if libpq would mix up its parts. The
            text continues a sentence that starts with "this". It contains the correct form and
            never repeats *dsn* (Invariant 20).
    """
    if "\0" in dsn:
        # libpq would stop reading there, and ignore an sslmode behind it.
        raise ValueError(
            "is not a PostgreSQL connection string: it contains a NUL character; remove it"
        )
    try:
        parts: dict[str, Any] = conninfo_to_dict(dsn)
    except (ProgrammingError, UnicodeEncodeError):
        # libpq's own message quotes the part that it cannot parse, which may be the password.
        raise ValueError(
            "is not a PostgreSQL connection string; use postgresql://user@host:5432/database "
            "or 'host=... dbname=... user=...'"
        ) from None
    # libpq takes part of a password with an unescaped @ or / for a host, port or database, and
    # quotes those in its messages.
    misread = "@" in f"{parts.get('host', '')}{parts.get('dbname', '')}"
    if "://" in dsn and (misread or not _PORTS.fullmatch(str(parts.get("port", "")))):
        raise ValueError(
            "is a connection string that cannot be split into user, password and host; in a URL, "
            "write an @ of the password as %40, a / as %2F and a : as %3A"
        )
    return parts


def is_refused(text: str) -> bool:
    """Return whether *text*, of a connection that failed, names a setup that has to change.

    libpq gives no code for that.
    """
    return _REFUSED.search(text) is not None
