"""Errors of PostgreSQL as errors of a sink."""

from __future__ import annotations

import re
from typing import Final

import psycopg

from transporter.errors import Rejected, RouteFault, SinkError, SinkTimeout, SinkUnavailable

_DATA: Final = ("21", "22", "23", "2F", "38", "39", "44", "54", "P0")
"""Classes of errors that one entry causes: values, constraints, limits, triggers."""
_DATA_CODES: Final = frozenset({"0A000", "42804", "42846", "42704", "42601", "428C9", "42P16"})
"""Other such errors: a table that cannot be truncated, a type that the target does not have."""
_ORDER: Final = frozenset({"21000", "23001", "23503", "23505", "23P01"})
"""Errors that another order of the entries may avoid."""
_PASSING: Final = ("08", "40", "53", "57", "58")
_PASSING_CODES: Final = frozenset({"25006", "25P03", "25P04", "55006", "55P03"})
"""A standby that may be promoted, transactions that the server has ended, and locks."""
_STALE: Final = frozenset({"42703", "42P01", "42P10", "42804", "428C9"})
"""Errors about a table that has changed since its columns were read."""
_CREATED: Final = frozenset({"42701", "42P06", "42P07", "42710"})
"""Errors about a column, schema, table or type that another session has created meanwhile."""
_CONVERSION: Final = "22"
"""The class of errors whose messages quote values, and no names."""
_QUOTES: Final = "[\"'\u00ab\u00bb\u2018-\u201e\u300c-\u300f]"
_QUOTED: Final = re.compile(f"{_QUOTES}.*{_QUOTES}", re.DOTALL)
"""A value in quotes, as messages of any language have it. It may have quotes itself."""
_ENUM: Final = re.compile(r"invalid input value for enum (\S+):")
_HIDDEN: Final = '"…"'
_CANCELED: Final = "57014"
_NO_ROOM: Final = frozenset({"53200", "53400"})
"""No memory, and a limit of the configuration, such as temp_file_limit."""


class BadEntry(Exception):
    """The change at a place of the part cannot be applied, as far as its content shows."""

    def __init__(self, place: int, problem: str) -> None:
        """Name the *place*, an index, and the *problem*."""
        super().__init__(place, problem)
        self.place, self.problem = place, problem


class MissingRow(Exception):
    """A row of which an entry has only a part is not there. The text names the table."""


def is_data(error: psycopg.Error) -> bool:
    """Return whether an entry is the cause of *error*."""
    code = error.sqlstate or ""
    if not code:  # A value that the driver refuses to send, such as a NUL in text.
        return isinstance(error, psycopg.DataError)
    return (code[:2] in _DATA or code in _DATA_CODES) and not _is_created(error)


def is_order(error: Exception) -> bool:
    """Return whether another order of the entries may avoid *error*."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _ORDER


def is_slow(error: psycopg.Error) -> bool:
    """Return whether a statement took too long."""
    return error.sqlstate == _CANCELED


def is_too_large(error: psycopg.Error) -> bool:
    """Return whether smaller parts may avoid *error*: they take less time, memory and locks."""
    return is_slow(error) or error.sqlstate in _NO_ROOM


def is_stale(error: Exception) -> bool:
    """Return whether *error* may come from columns that were read too long ago."""
    return isinstance(error, psycopg.Error) and (error.sqlstate in _STALE or _is_created(error))


def text_of(error: Exception) -> str:
    """Return the text of *error*: of the server's errors the primary message alone.

    Details may hold the contents of rows. So does the message about a value that cannot be
    converted, which quotes it: that is left out (Invariant 20).
    """
    if not isinstance(error, psycopg.Error):
        return str(error)
    text = (error.diag.message_primary or str(error)).strip()
    return _QUOTED.sub(_HIDDEN, text) if (error.sqlstate or "")[:2] == _CONVERSION else text


def problem_of(error: Exception) -> str:
    """Return the problem of an entry that *error* is about, with a hint where there is one."""
    text = text_of(error)
    if isinstance(error, psycopg.errors.ForeignKeyViolation):
        return f"{text}; where a parent may come later, as in a copy, use constraints: replica"
    if found := _ENUM.match(text):
        return (
            f"{text}; if the source's type has got a new value, add it here as well: "
            f"ALTER TYPE {found[1]} ADD VALUE '...'"
        )
    return text


def sink_error(error: psycopg.Error, operation: str) -> SinkError:
    """Return *error*, which names no entry, as an error of the sink."""
    text, code = f"{operation}: {text_of(error)}", error.sqlstate or ""
    if is_slow(error):
        return SinkTimeout(f"{text}; smaller slices may help")
    if code[:2] in _PASSING or code in _PASSING_CODES or _is_lost(error) or _is_created(error):
        return SinkUnavailable(text)
    if is_data(error):
        return Rejected(text)
    return RouteFault(text)


def _is_created(error: psycopg.Error) -> bool:
    """Return whether another session has just created the same thing."""
    # Sessions that do so at the same moment meet in an index of the catalog.
    in_catalog = error.sqlstate == "23505" and error.diag.schema_name == "pg_catalog"
    return in_catalog or error.sqlstate in _CREATED


def _is_lost(error: psycopg.Error) -> bool:
    """Return whether the connection failed, for which the server has no code."""
    if isinstance(error, psycopg.errors.InternalError_):
        # Something was dropped while a query of the catalog looked at it.
        return text_of(error).startswith(("could not open relation", "cache lookup failed"))
    return not error.sqlstate or type(error) is psycopg.OperationalError


def unavailable(operation: str, error: psycopg.Error) -> SinkUnavailable:
    """Return the error of a connection that could not be made."""
    return SinkUnavailable(f"{operation}: {text_of(error)}")
