"""JSON objects of rows, with the bytes that ``row_to_json`` gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from transporter_adaptors.postgres_cdc.json_text import (
    NULL,
    TextError,
    json_raw,
    json_string,
    member_heads,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transporter_adaptors.postgres_cdc.json_text import Rule

_NEVER: Final = object()


class RowEncoder:
    """The JSON objects of the rows of one relation.

    Args:
        columns: Name and rule of each column, in the order of the values.
        absent: A marker. Columns whose value is this object are left out.
        on_malformed: Is called with a column's name and the problem of a text that is not one of
            its type, as after an ALTER TYPE. The text is written as a string then.
    """

    def __init__(
        self,
        columns: Sequence[tuple[str, Rule]],
        absent: object = _NEVER,
        on_malformed: Callable[[str, TextError], None] | None = None,
    ) -> None:
        self._on_malformed = on_malformed
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
            TextError: A text is not one of its column's type, and nothing is called then.
            ValueError: There are more or fewer values than columns.
        """
        absent = self._absent
        parts: list[bytes] = []
        append = parts.append
        index = -1
        for (head, null, rule), value in zip(self._columns, values, strict=True):
            index += 1
            if value is None:
                append(null)
            elif value is not absent:
                append(head)
                try:
                    append(value if rule is None else rule(value))
                except TextError as error:
                    append(self._as_string(index, value, error))
        if not parts:
            return b"{}"
        if values[0] is absent:
            parts[0] = b"{" + parts[0][1:]
        append(b"}")
        return b"".join(parts)

    def _as_string(self, index: int, value: bytes, error: TextError) -> bytes:
        if self._on_malformed is None:
            raise error.in_column(self._names[index]) from error
        self._on_malformed(self._names[index], error)
        return json_string(value)
