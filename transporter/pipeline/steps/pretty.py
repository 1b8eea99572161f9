"""``pretty``: the step that writes JSON documents with one value on a line, or all on one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BeforeValidator, Field

from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.pipeline.steps.documents import DocumentStep
from transporter.pipeline.steps.json_edits import check_object
from transporter.pipeline.steps.json_grammar import STRING, UnsupportedJson
from transporter.pipeline.steps.step import StepSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MAX_INDENT: Final = 10
MAX_SPACE: Final = 16 * 1024**2
"""Bytes of space that one document may get: deep ones grow a thousandfold."""

_NO_SPACE: Final = re.compile(STRING + rb'|[^" \t\n\r]++').findall
_TOKENS: Final = re.compile(STRING + rb':?+|\[\]|\{\}|[\[\]{},]|[^"\[\]{},]++').findall
_FIRST, _LAST = (b"{", b"["), (b"}", b"]")


def _refuse_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a whole number")  # noqa: TRY004 - pydantic reports ValueError
    return value


class PrettySettings(StepSettings):
    """The indentation of each level. With 0 all is on one line."""

    indent: Annotated[int, Field(ge=0, le=MAX_INDENT), BeforeValidator(_refuse_boolean)] = 2


def pretty(settings: PrettySettings, folder: Path) -> DocumentStep:  # noqa: ARG001 - as every step
    """Return the step that writes documents with the indentation of *settings*."""
    return DocumentStep(
        "pretty", NamespaceFilter(settings.namespace), make_formatter(settings.indent)
    )


def make_formatter(indent: int) -> Callable[[bytes], bytes]:
    """Return a function that lays out a document, and keeps strings, numbers and names as written.

    It raises :class:`UnsupportedJson` for data that is not a JSON object, and for an object that
    would get more space than :data:`MAX_SPACE`.
    """

    def lay_out(data: bytes) -> bytes:
        check_object(data)
        made = b"".join(_NO_SPACE(data))
        if indent:
            made = _indent(made, b" " * indent)
        return data if made == data else made

    return lay_out


def _indent(data: bytes, indent: bytes) -> bytes:
    """Return *data*, which is JSON without space, over several lines."""
    parts: list[bytes] = []
    line, space = b"\n", 0
    for token in _TOKENS(data):
        if token in _LAST:
            line = line[: -len(indent)]
            parts.append(line)
        parts.append(token)
        if token.endswith(b":"):  # a name, because a string that is a value ends with its quote
            parts.append(b" ")
        elif token == b"," or token in _FIRST:
            line += indent if token in _FIRST else b""
            parts.append(line)
            space += len(line)
            if space > MAX_SPACE:
                raise UnsupportedJson(f"data would take more than {MAX_SPACE} bytes of space")
    return b"".join(parts)
