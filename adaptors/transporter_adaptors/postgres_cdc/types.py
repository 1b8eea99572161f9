"""Rules for the types of columns, from the server's catalog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from psycopg.rows import tuple_row

from transporter_adaptors.postgres_cdc.array_json import ArrayRule
from transporter_adaptors.postgres_cdc.json_text import (
    composite_rule,
    json_boolean,
    json_bytes,
    json_number,
    json_quoted,
    json_raw,
    json_string,
    json_timestamp,
    json_timestamptz,
    vector_rule,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    import psycopg

    from transporter_adaptors.postgres_cdc.json_text import Rule

_BUILT_IN: Final[dict[int, Rule]] = {
    16: json_boolean,  # bool
    17: json_bytes,  # bytea
    20: json_raw,  # int8
    21: json_raw,  # int2
    22: vector_rule("int2vector", json_raw),  # int2vector
    23: json_raw,  # int4
    26: json_quoted,  # oid
    30: vector_rule("oidvector", json_quoted),  # oidvector
    114: json_raw,  # json
    700: json_number,  # float4
    701: json_number,  # float8
    1082: json_quoted,  # date
    1083: json_quoted,  # time
    1114: json_timestamp,  # timestamp
    1184: json_timestamptz,  # timestamptz
    1186: json_quoted,  # interval
    1266: json_quoted,  # timetz
    1700: json_number,  # numeric
    2950: json_quoted,  # uuid
    3802: json_raw,  # jsonb
}
"""Types whose JSON is not simply their text as a string. Their OIDs are the same everywhere."""

# Types that contain no other have neither base, element nor attributes. json_categorize_type, in
# the server, looks for a cast to json for these alone, and only if they are not built in.
_DESCRIBE: Final = """
WITH RECURSIVE needed(oid) AS (
    SELECT pg_catalog.unnest(%s::pg_catalog.oid[])
    UNION
    SELECT part.oid
    FROM needed AS n
    JOIN pg_catalog.pg_type AS t ON t.oid = n.oid
    CROSS JOIN LATERAL (
        SELECT t.typbasetype WHERE t.typtype = 'd'
        UNION ALL
        SELECT t.typelem
        WHERE t.typsubscript = 'pg_catalog.array_subscript_handler'::pg_catalog.regproc
        UNION ALL
        SELECT a.atttypid FROM pg_catalog.pg_attribute AS a
        WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    ) AS part(oid)
)
SELECT t.oid::pg_catalog.int8,
    pg_catalog.format_type(t.oid, NULL),
    CASE WHEN t.typtype = 'd' THEN t.typbasetype::pg_catalog.int8 END,
    CASE WHEN t.typsubscript = 'pg_catalog.array_subscript_handler'::pg_catalog.regproc
        THEN t.typelem::pg_catalog.int8 END,
    (SELECT pg_catalog.ascii(e.typdelim::pg_catalog.text) FROM pg_catalog.pg_type AS e
        WHERE e.oid = t.typelem),
    t.typtype = 'c',
    ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attribute AS a
        WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        ORDER BY a.attnum),
    ARRAY(SELECT a.atttypid::pg_catalog.int8 FROM pg_catalog.pg_attribute AS a
        WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        ORDER BY a.attnum),
    t.oid >= 16384 AND EXISTS (SELECT FROM pg_catalog.pg_cast AS c
        WHERE c.castsource = t.oid AND c.casttarget = 'pg_catalog.json'::pg_catalog.regtype
        AND c.castmethod = 'f')
FROM needed JOIN pg_catalog.pg_type AS t USING (oid)
"""


@dataclass(frozen=True, slots=True)
class _Type:
    """A row of ``pg_type``, with the attributes of a composite type."""

    name: str
    base: int | None
    element: int | None
    delimiter: int | None
    is_composite: bool
    attributes: list[str]
    attribute_types: list[int]
    has_cast: bool

    @property
    def parts(self) -> list[int]:
        """The types whose values are in a value of this one."""
        found = (self.base, self.element, *self.attribute_types * self.is_composite)
        return [oid for oid in found if oid is not None]


class TypeCatalog:
    """The types of a database, as far as they were loaded, and their rules.

    A type with a cast to json through a function (hstore's, PostGIS's) becomes what the cast
    returns in ``row_to_json``, and so does each value inside an array or a composite. That cannot
    be made from the text, so a column that contains such a type at any depth is one string: its
    text. A query of such a column by ``row_to_json`` has to select its text, too.
    """

    def __init__(self) -> None:
        self._types: dict[int, _Type | None] = {}
        self._rules: dict[int, Rule] = {}

    def load(self, connection: psycopg.Connection[Any], oids: Iterable[int]) -> None:
        """Load the types *oids* and everything they contain, by one query.

        Types that were loaded before are loaded again, because they may have been altered.

        Args:
            connection: A session in the database, with client_encoding UTF8.
            oids: The types of columns.
        """
        wanted = sorted(set(oids))
        with connection.cursor(row_factory=tuple_row) as cursor:
            rows = cursor.execute(_DESCRIBE, [wanted]).fetchall()
        self._types.update(dict.fromkeys(wanted))
        self._types.update({row[0]: _Type(*row[1:]) for row in rows})
        self._rules.clear()

    def rule(self, oid: int) -> Rule:
        """Return the rule of a type that was loaded. One that no longer exists is a string.

        Raises:
            LookupError: It was not loaded.
        """
        if (rule := self._rules.get(oid)) is None:
            rule = json_string if self.casts_to_json(oid) else self._make_rule(oid)
            self._rules[oid] = rule
        return rule

    def casts_to_json(self, oid: int) -> bool:
        """Return whether ``row_to_json`` would use a cast for a value, or inside of it.

        Raises:
            LookupError: It was not loaded.
        """
        found = self._find(oid)
        if found is None:
            return False
        if found.parts or found.is_composite:
            return any(map(self.casts_to_json, found.parts))
        return found.has_cast

    def _find(self, oid: int) -> _Type | None:
        try:
            return self._types[oid]
        except KeyError:
            raise LookupError(f"the type with OID {oid} was not loaded; load it first") from None

    def _make_rule(self, oid: int) -> Rule:
        found = self._find(oid)
        if oid in _BUILT_IN:
            return _BUILT_IN[oid]
        if found is None:
            return json_string
        if found.base is not None:
            return self.rule(found.base)
        if found.element is not None:
            delimiter = bytes([found.delimiter or ord(",")])
            return ArrayRule(found.name, self.rule(found.element), delimiter)
        if found.is_composite:
            rules = map(self.rule, found.attribute_types)
            return composite_rule(found.name, list(zip(found.attributes, rules, strict=True)))
        return json_string
