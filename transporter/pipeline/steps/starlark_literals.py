"""Messages as Starlark text, and Starlark's text as values again. Exact in both directions.

Values cross as text because the binding's own conversion cuts strings and bytes at a NUL character,
and keeps every list that it returns in memory for ever.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from decimal import Decimal
from json.encoder import encode_basestring as quoted
from typing import TYPE_CHECKING, Any, Final

from transporter.pipeline.steps.documents import is_json
from transporter.pipeline.steps.json_grammar import MAX_DEPTH, UnsupportedJson, possessive

if TYPE_CHECKING:
    from transporter.message import Message

_STRING: Final = r'"[^"\\]*+' + possessive(rb'\\.[^"\\]*+').decode() + '"'
_BRACKETS: Final = re.compile(_STRING + r"|([\[{(])|[\]})]")
_DECIMALS: Final = re.compile(_STRING + r"|(-?[0-9]++[.e][0-9.e+-]++)")
_TOKEN: Final = re.compile(
    # Text that JSON writes in the same way is one match, however long. For its end see `repeated`.
    r'(?:"[^"\\]*+"|[\[\]{}: ]|,(?!\))|-?[0-9]++(?:\.[0-9]++|)(?:e[+-][0-9]++|)|(?!))++'
    rf"|(?P<string>b?{_STRING})"
    r"|(?P<word>None|True|False)"
    r"|(?P<tuple>\(|,?\))"
    r"|(?P<other>.)",
    re.DOTALL,
)
_WORDS: Final = {"None": "null", "True": "true", "False": "false"}
_NOT_FINITE: Final = "a number that is not finite"
_OTHERS: Final = {
    "n": _NOT_FINITE,
    "+": _NOT_FINITE,
    "-": _NOT_FINITE,
    ".": "a value that contains itself",
}
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|([abfnrtv])|(.))")
_LETTERS: Final = dict(zip(b"abfnrtv", b"\a\b\f\n\r\t\v", strict=True))
_BYTES: Final = "\ud800"
"""The name of an object's only member where it stands for bytes. No script can make it."""

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class Given:
    """A message as a script is given it.

    ``source`` is a dict in Starlark's syntax, on one line. Of a JSON document, ``data`` is its text
    as Python writes it. ``spelt`` is the document's spelling of those decimals that Python would
    spell in another way. The spelling is empty where two of them are one to Python.
    """

    source: str
    data: str | None = None
    spelt: dict[str, str] = field(default_factory=dict)


def given_of(message: Message) -> Given:
    """Return *message* as a script is given it.

    Raise :class:`UnsupportedJson` when its data does not match its content type, or holds values
    that Starlark cannot.
    """
    data: str | None = None
    spelt: dict[str, str] = {}
    if is_json(message.content_type):
        data, spelt = ("null", {}) if message.data is None else _document_literal(message.data)
    headers = ", ".join(
        [f"[{quoted(name)}, {_bytes_literal(cell)}]" for name, cell in message.headers]
    )
    source = (
        f'{{"namespace": {quoted(message.namespace)}, "key": {_bytes_literal(message.key)}, '
        f'"op": {quoted(message.op)}, "phase": {quoted(message.phase)}, '
        f'"timestamp": {message.timestamp}, '
        f'"source_id": {_text_literal(message.source_id)}, '
        f'"content_type": {_text_literal(message.content_type)}, '
        f'"headers": [{headers}], '
        f'"data": {_bytes_literal(message.data) if data is None else data}}}'
    )
    return Given(source, data, spelt)


def _text_literal(value: str | None) -> str:
    return "null" if value is None else quoted(value)


def _bytes_literal(value: bytes | None) -> str:
    if value is None:
        return "null"
    try:
        return quoted(value.decode())
    except UnicodeDecodeError:
        return repr(value)  # Python's own bytes literals are Starlark's too


def _document_literal(data: bytes) -> tuple[str, dict[str, str]]:
    """Return the document *data* as Python writes it, and its own spelling of some decimals."""
    spelt: dict[str, str] = {}

    def decimal(digits: str) -> float:
        value = float(digits)
        known = spelt.setdefault(repr(value), digits)
        if known != digits and not _is_same_number(known, digits):
            spelt[repr(value)] = ""
        return value

    try:
        text = data.decode()
        refuse_deep(text, MAX_DEPTH)
        made = _encode(json.loads(text, parse_float=decimal))
        if b"\\u" in data:
            made.encode()
    except UnicodeDecodeError as error:
        raise UnsupportedJson(f"data is not JSON: not UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError:
        raise UnsupportedJson(
            "data holds an unpaired surrogate, which Starlark does not have"
        ) from None
    except json.JSONDecodeError as error:
        raise UnsupportedJson(f"data is not JSON: {error.msg} at character {error.pos}") from None
    except ValueError as error:
        if isinstance(error, UnsupportedJson):
            raise
        # Python's limit on digits, or a number that is not finite. Their own texts repeat values.
        raise UnsupportedJson("data holds a number that is not finite, or too long") from None
    return made, {plain: digits for plain, digits in spelt.items() if plain != digits}


def _is_same_number(digits: str, others: str) -> bool:
    try:
        return Decimal(digits) == Decimal(others)
    except ArithmeticError:
        return False  # not a decimal, or with an exponent beyond every decimal's


def refuse_deep(text: str, most: int) -> None:
    """Raise :class:`UnsupportedJson` where *text*, JSON or Starlark, is deeper than *most*."""
    if text.count("[") + text.count("{") + text.count("(") <= most:
        return
    depth = 0
    for found in _BRACKETS.finditer(text):
        if found.lastindex:
            depth += 1
        elif found[0][0] != '"':
            depth -= 1
        if depth > most:
            raise UnsupportedJson(f"data nested more than {MAX_DEPTH} levels deep")


def parse_value(text: str) -> Any:  # noqa: ANN401 - whatever a script returned
    """Return the value that Starlark writes as *text*. Tuples become lists.

    Raise :class:`UnsupportedJson` for values that JSON does not have, bytes apart.
    """
    # A message, and a list of them, are two levels more.
    refuse_deep(text, MAX_DEPTH + 2)
    try:
        hook = _restore_bytes if 'b"' in text else None
        return json.loads(_TOKEN.sub(_as_json, text), object_hook=hook)
    except json.JSONDecodeError as error:
        key = "property name" in error.msg
        raise _unsupported(
            "a key that is not text" if key else "a value of Starlark's own"
        ) from None
    except UnsupportedJson:
        raise
    except ValueError:
        raise UnsupportedJson("a number of too many digits") from None


def _unsupported(what: str) -> UnsupportedJson:
    return UnsupportedJson(f"{what}, which JSON does not have")


def _as_json(token: re.Match[str]) -> str:
    text = token[0]
    match token.lastgroup:
        case None:
            return text
        case "string" if text[0] == "b":
            return f'{{"\\ud800": "{_unquote(text[1:]).hex()}"}}'
        case "string":
            return _requote(text)
        case "word":
            return _WORDS[text]
        case "tuple":
            return "[" if text == "(" else "]"
    raise _unsupported(_OTHERS.get(text, "a value of Starlark's own"))


def _requote(literal: str) -> str:
    try:
        return quoted(_unquote(literal).decode())
    except UnicodeDecodeError:
        raise _unsupported("text that is not UTF-8") from None


def _restore_bytes(pairs: dict[str, Any]) -> object:
    return bytes.fromhex(pairs[_BYTES]) if _BYTES in pairs else pairs


def _unquote(literal: str) -> bytes:
    """Return the bytes of a string or bytes literal, as Starlark's ``repr`` writes it."""

    def plain(found: re.Match[bytes]) -> bytes:
        two, four, eight, letter, itself = found.groups()
        if two:
            return bytes.fromhex(two.decode())
        if letter:
            return bytes([_LETTERS[letter[0]]])
        return itself or chr(int(four or eight, 16)).encode()

    return _ESCAPE.sub(plain, literal[1:-1].encode())


def document_text(value: object) -> str:
    """Return *value* as JSON, as Python writes it, or raise :class:`UnsupportedJson`."""
    try:
        text = _encode(value)
    except TypeError:
        raise _unsupported("bytes in data") from None
    refuse_deep(text, MAX_DEPTH)
    return text


def restore_spelling(text: str, spelt: dict[str, str]) -> bytes:
    """Return the document *text* with every decimal in it spelt as in *spelt*.

    Raise :class:`UnsupportedJson` for one that is not spelt in one way.
    """

    def spell(found: re.Match[str]) -> str:
        digits = spelt.get(found[0], found[0])
        if not digits:
            raise UnsupportedJson("a decimal that stands for two different decimals of the data")
        return digits

    return (_DECIMALS.sub(spell, text) if spelt else text).encode()
