"""The order of keys: the types of a key's columns, and the operators that compare them.

A session has no search path, so a plain ``<`` is always one of pg_catalog. The server sorts by the
default operator class of a type, whose operators may be in any schema. Those of citext are in the
extension's: a plain ``<`` there compares texts, in another order than ``ORDER BY`` has.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres_cdc.tables import Column

INTEGERS: Final = frozenset({20, 21, 23})
"""The types int8, int2 and int4, which are compared here. The server compares all others."""


class Comparison(IntEnum):
    """A comparison, by its place among the operators of a class (strategy number less 1)."""

    LESS = 0
    AT_MOST = 1
    EQUAL = 2
    AT_LEAST = 3
    GREATER = 4


_PLAIN: Final = ("<", "<=", "=", ">=", ">")
_STRICT: Final = {Comparison.AT_MOST: Comparison.LESS, Comparison.AT_LEAST: Comparison.GREATER}
_INCLUSIVE: Final = {Comparison.LESS: Comparison.AT_MOST, Comparison.GREATER: Comparison.AT_LEAST}


class KeyType(NamedTuple):
    """The type of a key's column, by number and as in SQL, with its five operators as in SQL."""

    oid: int
    type: str
    operators: tuple[str, ...] = _PLAIN

    @property
    def is_plain(self) -> bool:
        """Whether the operators are those of pg_catalog."""
        return self.operators == _PLAIN

    def operator(self, comparison: Comparison) -> sql.Composable:
        """Return the operator of *comparison*, for a statement with parameters."""
        return sql.SQL(f" {self.operators[comparison]} ".replace("%", "%%"))

    def cast(self, text: sql.Composable) -> sql.Composable:
        """Return the expression of the value whose *text* is given."""
        return text + sql.SQL("::text::" + self.type.replace("%", "%%"))


_OPERATORS: Final = """
WITH RECURSIVE base (asked, oid) AS (
  SELECT t, t FROM unnest(%s::oid[]) t
  UNION SELECT b.asked, y.typbasetype FROM base b
  JOIN pg_type y ON y.oid = b.oid AND y.typtype = 'd')
SELECT b.asked::bigint,
       array_agg(format('OPERATOR(%%I.%%s)', n.nspname, o.oprname) ORDER BY p.amopstrategy)
FROM base b
JOIN pg_opclass c ON c.opcintype = b.oid AND c.opcdefault
JOIN pg_am a ON a.oid = c.opcmethod AND a.amname = 'btree'
JOIN pg_amop p ON p.amopfamily = c.opcfamily AND p.amoppurpose = 's'
              AND p.amoplefttype = b.oid AND p.amoprighttype = b.oid
JOIN pg_operator o ON o.oid = p.amopopr
JOIN pg_namespace n ON n.oid = o.oprnamespace
GROUP BY b.asked HAVING count(*) = 5 AND NOT bool_and(n.nspname = 'pg_catalog')
"""
"""The operators of types, or of the base types of domains, that are not all in pg_catalog.

A type without a class of its own, such as an enum or an array, uses one of pg_catalog.
"""


def key_types(connection: Connection, columns: Iterable[Column]) -> list[KeyType]:
    """Return the types of *columns* with their operators, from the catalog of *connection*."""
    types = [KeyType(column.type_oid, column.type) for column in columns]
    asked = {each.oid for each in types} - INTEGERS
    if not asked:
        return types
    found = {oid: tuple(names) for oid, names in connection.execute(_OPERATORS, [sorted(asked)])}
    return [each._replace(operators=found.get(each.oid, _PLAIN)) for each in types]


def compare(
    comparison: Comparison,
    lefts: Sequence[sql.Composable],
    rights: Sequence[sql.Composable],
    types: Sequence[KeyType],
) -> sql.Composable:
    """Return the condition that compares two rows of these *types*.

    It is one by which the server can search an index of the key.
    """
    if all(each.is_plain for each in types):
        # With the operators of pg_catalog the server compares whole rows.
        comma = sql.SQL(", ")
        return sql.SQL("({}) {} ({})").format(
            comma.join(lefts), sql.SQL(_PLAIN[comparison]), comma.join(rights)
        )
    *heads, (left, right, kind) = zip(lefts, rights, types, strict=True)
    condition = left + kind.operator(comparison) + right
    if comparison is Comparison.EQUAL:
        for left, right, kind in reversed(heads):
            condition = sql.SQL("{} AND {}").format(
                left + kind.operator(comparison) + right, condition
            )
        return sql.SQL("({})").format(condition)
    strict = _STRICT.get(comparison, comparison)
    inclusive = _INCLUSIVE[strict]
    for left, right, kind in reversed(heads):
        condition = sql.SQL("{} AND ({} OR {})").format(
            left + kind.operator(inclusive) + right, left + kind.operator(strict) + right, condition
        )
    return sql.SQL("({})").format(condition)
