"""Rows as JSON objects, from the text of their values. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter_adaptors.postgres_cdc.json_text import quote
from transporter_adaptors.postgres_cdc.messages import UNCHANGED, Unchanged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transporter_adaptors.postgres_cdc.json_text import Rule
    from transporter_adaptors.postgres_cdc.messages import Value


class RowEncoder:
    """Writes the rows of one table as ``row_to_json`` does. Immutable."""

    def __init__(self, columns: Sequence[tuple[str, Rule]]) -> None:
        """Prepare for *columns* in their order, each with the rule of its type."""
        names = [quote(name.encode(errors="surrogateescape")) + b":" for name, _ in columns]
        self._columns = [
            (prefix, prefix + b"null", rule)
            for prefix, (_, rule) in zip(names, columns, strict=True)
        ]

    def encode(self, values: Sequence[Value]) -> bytes:
        """Return *values* as a JSON object. Unchanged ones are left out."""
        parts = []
        for (prefix, null, rule), value in zip(self._columns, values, strict=True):
            if value is None:
                parts.append(null)
            elif not isinstance(value, Unchanged):
                parts.append(prefix + rule(value))
        return b"{" + b",".join(parts) + b"}"


def unchanged_places(values: Sequence[Value]) -> list[int]:
    """Return the places of the values that the server left out."""
    return [place for place, value in enumerate(values) if value is UNCHANGED]
