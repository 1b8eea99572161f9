"""The types of a database: which rule makes JSON of their text, the catalog's answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psycopg.rows import class_row

from transporter_adaptors.postgres_cdc import json_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres_cdc.json_text import Rule

_BOOL, _TIMESTAMP, _TIMESTAMPTZ = 16, 1114, 1184
_VECTORS: Final = (22, 30)
"""int2vector and oidvector."""
_BUILT_IN: Final[dict[int, Rule]] = {
    _BOOL: json_text.boolean,
    20: json_text.as_is,
    21: json_text.as_is,
    23: json_text.as_is,
    114: json_text.as_is,
    3802: json_text.as_is,
    700: json_text.number,
    701: json_text.number,
    1700: json_text.number,
    _TIMESTAMP: json_text.timestamp,
    _TIMESTAMPTZ: json_text.timestamp_with_zone,
}
"""Rules of bool, int8, int2, int4, json, jsonb, float4, float8, numeric and the timestamps."""
# typdelim of an array is that of its elements.
_TYPES: Final = """
SELECT t.oid::bigint AS oid, t.typbasetype::bigint AS base,
       CASE WHEN t.typsubscript = 'pg_catalog.array_subscript_handler'::regproc
            THEN t.typelem::bigint ELSE 0 END AS element,
       coalesce((SELECT e.typdelim FROM pg_type e WHERE e.oid = t.typelem), ',') AS delimiter,
       t.typtype = 'c' AS is_composite,
       coalesce((SELECT array_agg(a.attname ORDER BY a.attnum) FROM pg_attribute a
                 WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
                 AND t.typtype = 'c'), '{}')::text[] AS names,
       coalesce((SELECT array_agg(a.atttypid ORDER BY a.attnum) FROM pg_attribute a
                 WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
                 AND t.typtype = 'c'), '{}')::bigint[] AS members,
       t.oid >= 16384 AND EXISTS (SELECT FROM pg_cast c WHERE c.castsource = t.oid
         AND c.casttarget = 'pg_catalog.json'::regtype AND c.castmethod = 'f') AS casts_to_json
FROM pg_type t WHERE t.oid = ANY(%s)
"""


@dataclass(frozen=True, slots=True)
class _Type:
    oid: int
    base: int
    element: int
    delimiter: str
    is_composite: bool
    names: list[str]
    members: list[int]
    casts_to_json: bool

    @property
    def parts(self) -> list[int]:
        """The types that it is made of."""
        return [oid for oid in (self.base, self.element, *self.members) if oid]


class TypeCatalog:
    """Rules by type, loaded once from the catalog. Not thread-safe.

    A type that is gone by now is text.
    """

    def __init__(self) -> None:
        self._types: dict[int, _Type | None] = {}
        self._rules: dict[int, Rule] = {}

    def load(self, connection: Connection, oids: Iterable[int]) -> None:
        """Load what is needed for the types *oids*, in a few queries at most."""
        wanted = {*oids} - self._types.keys()
        while wanted:
            with connection.cursor(row_factory=class_row(_Type)) as cursor:
                found = cursor.execute(_TYPES, [sorted(wanted)]).fetchall()
            self._types |= dict.fromkeys(wanted)
            self._types |= {each.oid: each for each in found}
            wanted = {part for each in found for part in each.parts} - self._types.keys()

    def clear(self) -> None:
        """Forget all types, because some may have changed."""
        self._types.clear()
        self._rules.clear()

    def is_text(self, oid: int) -> bool:
        """Return whether a column of the type is read as its text, a JSON string.

        That is one which has, anywhere in it, a type with its own cast to json. ``row_to_json``
        would use the cast, and the stream cannot.
        """
        kind = self._types.get(oid)
        if kind is None:
            return False
        return kind.casts_to_json or any(self.is_text(part) for part in kind.parts)

    def rule(self, oid: int) -> Rule:
        """Return the rule of the type *oid*, which must have been loaded."""
        if (rule := self._rules.get(oid)) is None:
            rule = self._rules[oid] = json_text.quote if self.is_text(oid) else self._make(oid)
        return rule

    def _make(self, oid: int) -> Rule:
        if (built_in := _BUILT_IN.get(oid)) is not None:
            return built_in
        kind = self._types.get(oid)
        if kind is None:
            return json_text.quote
        if kind.base:
            return self.rule(kind.base)
        if kind.element:
            item = self.rule(kind.element)
            if oid in _VECTORS:
                return json_text.vector_rule(item)
            return json_text.array_rule(item, kind.delimiter.encode())
        return self._composite(kind) if kind.is_composite else json_text.quote

    def _composite(self, kind: _Type) -> Rule:
        members = zip(kind.names, kind.members, strict=True)
        return json_text.composite_rule([(name, self.rule(member)) for name, member in members])
