"""JSON objects of rows, with the bytes that ``row_to_json`` gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from transporter_adaptors.postgres_cdc.json_text import NULL, TextError, json_raw, member_heads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transporter_adaptors.postgres_cdc.json_text import Rule

_NEVER: Final = object()


class RowEncoder:
    """The JSON objects of the rows of one relation.

    Args:
        columns: Name and rule of each column, in the order of the values.
        absent: A marker. Columns whose value is this object are left out.
    """

    def __init__(self, columns: Sequence[tuple[str, Rule]], absent: object = _NEVER) -> None:
        heads = member_heads([name for name, _ in columns])
        self._absent = absent
        self._names = [name for name, _ in columns]
        # A rule that changes nothing is not called.
        rules = [None if rule is json_raw else rule for _, rule in columns]
        nulls = [head + NULL for head in heads]
        self._columns = list(zip(heads, nulls, rules, strict=True))

    def encode(self, values: Sequence[Any]) -> bytes:
        """Return the JSON object of a row.

        Args:
            values: The text of each column, ``None`` for NULL, or the marker.

        Raises:
            TextError: A text is not one of its column's type.
            ValueError: There are more or fewer values than columns.
        """
        absent = self._absent
        parts: list[bytes] = []
        append = parts.append
        index = -1
        try:
            for (head, null, rule), value in zip(self._columns, values, strict=True):
                index += 1
                if value is None:
                    append(null)
                elif value is not absent:
                    append(head)
                    append(value if rule is None else rule(value))
        except TextError as error:
            raise error.in_column(self._names[index]) from error
        if not parts:
            return b"{}"
        if values[0] is absent:
            parts[0] = b"{" + parts[0][1:]
        append(b"}")
        return b"".join(parts)
