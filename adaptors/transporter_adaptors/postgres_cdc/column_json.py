"""The JSON of whole columns, equal to what the rules for single values give. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from transporter_adaptors.postgres_cdc.array_json import NUMERIC, ArrayRule
from transporter_adaptors.postgres_cdc.json_text import (
    json_boolean,
    json_bytes,
    json_number,
    json_quoted,
    json_raw,
    json_string,
    json_timestamp,
    json_timestamptz,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transporter_adaptors.postgres_cdc.json_text import Rule

_ESCAPED: Final = bytes(range(0x20)) + b'"\\'
_MARK_ESCAPED: Final = bytes.maketrans(_ESCAPED, b'"' * len(_ESCAPED))
_IS_ESCAPED: Final = r'[\x00-\x1f"\\]'
_ZERO, _NINE = b"09"
_NOT_PLAIN: Final = _ESCAPED + b" {}"
"""Bytes that the items of an array have only in quotes, or that have to be escaped in JSON."""
_BLANK: Final = 10
"""The place of the blank in a timestamp with a year of four digits."""


def _scalar(text: bytes) -> pa.Scalar:
    """Return *text* for Arrow. It is slow to find out the type of a value by itself."""
    return pa.scalar(text, pa.binary())


_NOTHING, _T, _F, _TRUE, _FALSE, _NO_ITEMS, _EMPTY = map(
    _scalar, (b"", b"t", b"f", b"true", b"false", b"{}", b"[]")
)
_ONE: Final = pa.scalar(1, pa.int32())


class JsonColumn(NamedTuple):
    """The JSON of a column: ``before``, a text of ``texts`` and ``after``, or null for NULL."""

    texts: pa.BinaryArray
    before: bytes = b""
    after: bytes = b""


def encode_column(rule: Rule, texts: pa.BinaryArray) -> JsonColumn:
    """Return the JSON of a column whose values *rule* turns into JSON.

    Raises:
        TextError: A text is not one of its column's type.

    """
    if isinstance(rule, ArrayRule):
        return _encode_arrays(rule, texts)
    encode = _ENCODERS.get(rule)
    return encode(texts) if encode is not None else _encode_each(rule, texts)


def join_columns(heads: Sequence[bytes], columns: Sequence[JsonColumn], tail: bytes) -> pa.Array:
    """Return for each row its values, a head before each, with *tail* at the end."""
    parts: list[pa.Array | pa.Scalar] = []
    text = b""
    for head, column in zip(heads, columns, strict=True):
        texts, before, after = column
        if texts.null_count and (before or after):
            texts = _join(before, texts, after)
            before = after = b""
        parts += [_scalar(text + head + before), texts]
        text = after
    parts += [_scalar(text + tail), _NOTHING]
    return pc.binary_join_element_wise(*parts, null_handling="replace", null_replacement="null")


def _encode_each(rule: Rule, texts: pa.BinaryArray) -> JsonColumn:
    """Return the JSON of a column, value by value."""
    made = [None if text is None else rule(text) for text in texts.to_pylist()]
    return JsonColumn(pa.array(made, pa.binary()))


def _encode_raw(texts: pa.BinaryArray) -> JsonColumn:
    return JsonColumn(texts)


def _encode_quoted(texts: pa.BinaryArray) -> JsonColumn:
    return JsonColumn(texts, b'"', b'"')


def _encode_strings(texts: pa.BinaryArray) -> JsonColumn:
    data = _data_of(texts)
    if b'"' in data.translate(_MARK_ESCAPED):
        mask = pc.match_substring_regex(texts, _IS_ESCAPED)
        made = [json_string(text)[1:-1] for text in texts.filter(mask).to_pylist()]
        texts = pc.replace_with_mask(texts, mask, pa.array(made, pa.binary()))
    return JsonColumn(texts, b'"', b'"')


def _encode_numbers(texts: pa.BinaryArray) -> JsonColumn:
    # The server ends every number with a digit.
    if not _data_of(texts).translate(None, NUMERIC) and _end_with_digits(texts):
        return JsonColumn(texts)
    return _encode_each(json_number, texts)


def _encode_booleans(texts: pa.BinaryArray) -> JsonColumn:
    is_true = pc.equal(texts, _T)
    is_false = pc.equal(texts, _F)
    if not _are_all(pc.or_(is_true, is_false)):
        return _encode_each(json_boolean, texts)
    return JsonColumn(pc.if_else(is_true, _TRUE, _FALSE))


def _encode_bytes(texts: pa.BinaryArray) -> JsonColumn:
    if _are_all(pc.starts_with(texts, b"\\x")):
        return JsonColumn(texts, b'"\\', b'"')
    return _encode_each(json_bytes, texts)


def _encode_timestamps(texts: pa.BinaryArray) -> JsonColumn:
    if not _have_usual_blank(texts):
        return _encode_each(json_timestamp, texts)
    return JsonColumn(pc.binary_replace_slice(texts, _BLANK, _BLANK + 1, b"T"), b'"', b'"')


def _encode_timestamps_with_zone(texts: pa.BinaryArray) -> JsonColumn:
    if not _have_usual_blank(texts) or not _are_all(pc.ends_with(texts, b"+00")):
        return _encode_each(json_timestamptz, texts)
    return JsonColumn(pc.binary_replace_slice(texts, _BLANK, _BLANK + 1, b"T"), b'"', b':00"')


def _encode_arrays(rule: ArrayRule, texts: pa.BinaryArray) -> JsonColumn:
    """Return the JSON of arrays, without a look at each if all have one dimension and plain items.

    Then their texts are JSON's but for the braces, and for the quotes around strings.
    """
    delimiter, data = rule.delimiter, _data_of(texts)
    braces = 2 * (len(texts) - texts.null_count)
    special = b"{}" if rule.is_numeric else _NOT_PLAIN
    rest = data.translate(None, special)
    if (
        len(data) != len(rest) + braces
        or (rest.translate(None, NUMERIC + delimiter) if rule.is_numeric else b"NULL" in rest)
        or not (rule.is_numeric or rule.element in {json_string, json_quoted})
        or any(mark in data for mark in (delimiter * 2, b"{" + delimiter, delimiter + b"}"))
        or not _are_all(pc.and_(pc.starts_with(texts, b"{"), pc.ends_with(texts, b"}")))
    ):
        return _encode_each(rule, texts)
    items = pc.binary_slice(texts, 1, -1)
    before, between, after = (b"[", b",", b"]") if rule.is_numeric else (b'["', b'","', b'"]')
    if between != delimiter:
        items = pc.replace_substring(items, pattern=delimiter, replacement=between)
    if rule.is_numeric or b"{}" not in data:
        return JsonColumn(items, before, after)
    made = _join(before, items, after)
    return JsonColumn(pc.if_else(pc.equal(texts, _NO_ITEMS), _EMPTY, made))


def _join(before: bytes, texts: pa.BinaryArray, after: bytes) -> pa.BinaryArray:
    return pc.binary_join_element_wise(_scalar(before), texts, _scalar(after), _NOTHING)


def _are_all(conditions: pa.BooleanArray) -> bool:
    """Return whether all are true, NULLs aside."""
    return bool(conditions.true_count + conditions.null_count == len(conditions))


def _have_usual_blank(texts: pa.BinaryArray) -> bool:
    found = pc.min_max(pc.find_substring(texts, b" "))
    return {found["min"].as_py(), found["max"].as_py()} == {_BLANK}


def _end_with_digits(texts: pa.BinaryArray) -> bool:
    texts = texts.drop_null() if texts.null_count else texts
    if not len(texts) or not pc.min(pc.binary_length(texts)).as_py():
        return False
    _, edges, data = texts.buffers()
    ends = pa.Array.from_buffers(pa.int32(), len(texts), [None, edges], offset=texts.offset + 1)
    characters = pa.Array.from_buffers(pa.uint8(), data.size, [None, data])
    found = pc.min_max(characters.take(pc.subtract(ends, _ONE)))
    return bool(found["min"].as_py() >= _ZERO and found["max"].as_py() <= _NINE)


def _data_of(texts: pa.BinaryArray) -> bytes:
    """Return all texts as one. NULLs have none."""
    _, edges, data = texts.buffers()
    places = memoryview(edges).cast("b").cast("i")
    first, end = places[texts.offset], places[texts.offset + len(texts)]
    return bytes(memoryview(data)[first:end]) if end > first else b""


_ENCODERS: Final[dict[Rule, Callable[[pa.BinaryArray], JsonColumn]]] = {
    json_boolean: _encode_booleans,
    json_bytes: _encode_bytes,
    json_number: _encode_numbers,
    json_quoted: _encode_quoted,
    json_raw: _encode_raw,
    json_string: _encode_strings,
    json_timestamp: _encode_timestamps,
    json_timestamptz: _encode_timestamps_with_zone,
}
