"""Connection strings of other programs, without the secrets in them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from psycopg.conninfo import make_conninfo

from transporter.postgres_dsn import parse_dsn
from transporter.scaffold.conversion.draft import variable

if TYPE_CHECKING:
    from transporter.scaffold.conversion.draft import Draft, Part

_SECRET_PARTS: Final = ("password", "sslpassword", "oauth_client_secret")
_VARIABLE: Final = re.compile(r"\$\{\w+\}")
_EMPTY: Final = re.compile(r"(?<!\S)\w+=(?=\s+\w+\s*=|\s*$)")
"""A word without a value. libpq would take the next word for it."""


def postgres_dsn(text: str, name: str, draft: Draft, part: Part, line: int) -> str:
    """Return *text* for a pipeline file. With a secret in it, return the variable *name* instead.

    The variable then stands for the whole string, because a password need not fit into one.
    """
    if _VARIABLE.fullmatch(text):
        return text
    missing = variable(name, "set it to the connection string of the database")
    if "://" not in text and _EMPTY.search(text):
        text = _EMPTY.sub("", text)
        draft.warn(line, "a word without a value is left out of the connection string", part)
    try:
        parts = parse_dsn(text)
    except ValueError:
        draft.warn(line, f"the connection string is not one of libpq's: set {name}", part)
        return missing
    held = {key: value for key, value in parts.items() if value not in ("", None)}
    open_parts = {key: value for key, value in held.items() if key not in _SECRET_PARTS}
    if all(_VARIABLE.fullmatch(str(held.get(key, "${X}"))) for key in _SECRET_PARTS):
        return text if "://" in text else make_conninfo("", **held)
    shown = make_conninfo("", **open_parts)
    draft.warn(line, f"the password is not copied: set {name} to '{shown}' with it", part)
    return missing


def url(text: str, name: str, draft: Draft, part: Part, line: int) -> str:
    """Return a URL for a pipeline file. With a password in it, return the variable *name*."""
    try:
        parts = urlsplit(text)
    except ValueError:
        draft.warn(line, f"the address cannot be read: set {name}", part)
        return variable(name, "set it to the address of the sink")
    secrets = (parts.password, parts.query)
    if all(each in (None, "") or _VARIABLE.fullmatch(str(each)) for each in secrets):
        return text
    draft.warn(line, f"the address is not copied, because it may hold a secret: set {name}", part)
    return variable(name, "set it to the address of the sink, with its password")
