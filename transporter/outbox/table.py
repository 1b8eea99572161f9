"""The outbox table: how its name is written in SQL, and the statements that create it."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

DEFAULT: Final = "outbox"
"""The table, and the channel of its notifications, where none is named."""
_LONGEST: Final = 63
"""Bytes of a name; PostgreSQL cuts a longer one, with no more than a notice."""
_PART: Final = r'"(?:[^"\0]|"")+"|[A-Za-z_][A-Za-z_0-9$]*'
_NAME: Final = re.compile(rf"(?:({_PART})\.)?({_PART})")


def quoted(name: str) -> str:
    """Return *name* (``name``, ``schema.name``, or quoted as in SQL) safely quoted for a statement.

    Read as SQL would: unquoted parts are folded to lower case. Raise
    ``ValueError`` when it is something else, or longer than PostgreSQL's names.
    """
    return ".".join(map(_quoted, _parts(name)))


def outbox_sql(table: str = DEFAULT, channel: str = DEFAULT) -> str:
    """Return the SQL that creates *table* with a trigger that notifies *channel*.

    The text is ``outbox.sql`` of this folder with the names filled in, explained
    by its comments; running it again changes nothing. Raise ``ValueError`` for
    names that PostgreSQL would not take.
    """
    *schema, name = _parts(table)
    template = files("transporter.outbox").joinpath("outbox.sql").read_text(encoding="utf-8")
    return template.format(
        table=quoted(table),
        notify=".".join(map(_quoted, [*schema, f"{name}_notify"])),
        trigger=_quoted(f"{name}_notify"),
        channel=_literal(channel),
    )


def _parts(name: str) -> list[str]:
    found = _NAME.fullmatch(name.strip())
    if found is None:
        raise ValueError(
            f"{name!r} is not a table name; write name, schema.name, "
            'or quote the parts as in SQL ("Order Outbox")'
        )
    parts = [_unquoted(part) for part in found.groups() if part]
    for part in parts:
        if len(part.encode()) > _LONGEST:
            raise ValueError(f"{part!r} is longer than the {_LONGEST} bytes of a name")
    return parts


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.lower()


def _quoted(part: str) -> str:
    return '"' + part.replace('"', '""') + '"'


def _literal(channel: str) -> str:
    if not 0 < len(channel.encode()) <= _LONGEST or "\0" in channel:
        raise ValueError(f"{channel!r} is no channel; write a name of at most {_LONGEST} bytes")
    text = channel.replace("'", "''")
    return " E'" + text.replace("\\", "\\\\") + "'" if "\\" in text else f"'{text}'"
