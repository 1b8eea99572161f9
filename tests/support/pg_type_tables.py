"""Tables with values of every type, and what of them arrives as JSON."""

from __future__ import annotations

import json
from typing import Any, Final

import psycopg
from cdc_values import ARRAY_LITERALS, LITERALS, MADE_LITERALS

EVERYTHING: Final = {**LITERALS, **MADE_LITERALS, **ARRAY_LITERALS}
JSON: Final = {"json", "jsonb"}
"""Types whose values in an array may look like arrays of more dimensions."""
LOST: Final = {"int2vector", "oidvector"}
"""Types whose JSON the server does not take back. No table of an application has them."""
_COLUMNS: Final = "n int PRIMARY KEY, v {kind}, a {kind}[], grid {kind}[]"
_VALUES: Final = "n, v, ARRAY[v, NULL], ARRAY[[v, NULL], [NULL, v]]"
_VALUES_ALONE: Final = "n, v, NULL, NULL"


def create_table(connection: psycopg.Connection[Any], table: str, kind: str) -> bool:
    """Create a table with values of a type, alone and in arrays. Return whether it is there."""
    try:
        connection.execute(f"CREATE TABLE public.{table} ({_COLUMNS.format(kind=kind)})")
        insert_values(connection, table, kind)
    except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedObject):
        connection.execute(f"DROP TABLE IF EXISTS public.{table}")
        return False
    return True


def insert_values(
    connection: psycopg.Connection[Any], table: str, kind: str, begin: int = 0
) -> None:
    """Insert a row for each value of a type, and one for NULL, behind the number *begin*."""
    values = _VALUES_ALONE if kind in {*ARRAY_LITERALS, *JSON} else _VALUES
    connection.execute(
        f"INSERT INTO public.{table} SELECT {values} FROM (SELECT {begin} + n AS n, x::{kind} AS v"
        " FROM unnest(%s::text[]) WITH ORDINALITY AS u (x, n)) AS u",
        [[*EVERYTHING[kind], None]],
    )


def texts(connection: psycopg.Connection[Any], table: str, kind: str) -> list[tuple[Any, ...]]:
    """Return all values of *table* as text, as far as they arrive.

    Bounds of arrays are not in JSON. JSON null is NULL, where the column may be NULL.
    """
    columns = ", ".join(
        rf"regexp_replace({name}::text, '\[-?\d+:-?\d+\]=', '', 'g')" for name in ("v", "a", "grid")
    )
    rows = connection.execute(f"SELECT n, {columns} FROM public.{table} ORDER BY n").fetchall()
    return [(n, _as_json(v), *rest) for n, v, *rest in rows] if kind in JSON else rows


def _as_json(text: str | None) -> str | None:
    """Return JSON as far as it arrives: null is NULL, strings without escapes, no outer blanks."""
    if text is None or text == "null":
        return None
    return repr(json.loads(text)) if text.startswith('"') else text.strip()
