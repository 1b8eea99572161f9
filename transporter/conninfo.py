"""Connection strings of PostgreSQL, and the ones that libpq would misread."""

from __future__ import annotations

import re
from typing import Any, Final

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

_PORTS: Final = re.compile(r"[0-9]*(,[0-9]*)*")


def parts_of(dsn: str) -> dict[str, Any]:
    """Return the parts of *dsn*, by their names.

    Raise ``ValueError`` when it is none, or one whose parts libpq takes for others. The text
    goes on after "this", says what to write instead, and never repeats *dsn* (Invariant 20).
    """
    if "\0" in dsn:
        # libpq would read up to there, and do without an sslmode that stands behind it.
        raise ValueError("is not a PostgreSQL connection string: it holds a NUL character")
    try:
        parts: dict[str, Any] = conninfo_to_dict(dsn)
    except (ProgrammingError, UnicodeEncodeError):
        # libpq's own text quotes the part it stumbled over, which may be the password.
        raise ValueError(
            "is not a PostgreSQL connection string; write postgresql://user@host:5432/database "
            "or 'host=... dbname=... user=...'"
        ) from None
    # A password with an @ or a / of its own is taken for a host, a port or a database: and those
    # libpq does quote.
    misread = "@" in f"{parts.get('host', '')}{parts.get('dbname', '')}"
    if "://" in dsn and (misread or not _PORTS.fullmatch(str(parts.get("port", "")))):
        raise ValueError(
            "is a connection string that cannot be parted into user, password and host; in a URL, "
            "write an @ of the password as %40, a / as %2F and a : as %3A"
        )
    return parts
