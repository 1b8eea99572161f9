"""Reading lines with their places, and what a line means. Nothing here opens a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from transporter.message import ERROR_HEADER, JSON, Message

if TYPE_CHECKING:
    from typing import BinaryIO

_SKIP_BYTES: Final = 1024**2


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


# Numbers stay text: a key is what the line says, and no digit limit applies.
_DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_constant)


class Line(NamedTuple):
    """A line without its end, and the bytes of the file that it takes."""

    data: bytes
    start: int
    end: int
    problem: str | None = None


def read_line(file: BinaryIO, limit: int, *, partial: bool) -> Line | None:
    """Return the next line of *file*; ``None``, and no move, when there is no whole one.

    A last line without an end counts when *partial*. Of a line of more than
    *limit* bytes only the first *limit* are kept.
    """
    start = file.tell()
    data = file.readline(limit + 1)
    ended, rest = data.endswith(b"\n"), data
    while rest and not rest.endswith(b"\n"):
        rest = file.readline(_SKIP_BYTES)
        ended = rest.endswith(b"\n")
    if not data or not (ended or partial):
        file.seek(start)
        return None
    if len(data.removesuffix(b"\n")) > limit:
        return Line(data[:limit], start, file.tell(), f"the line has more than {limit} bytes")
    return Line(data.removesuffix(b"\n"), start, file.tell())


def message_of(line: Line, namespace: str, key: str | None, timestamp: int, file: str) -> Message:
    """Return *line* as a message; one that is not JSON carries an error header instead."""
    problem, found = line.problem, None
    if problem is None:
        try:
            found = _key(_document(line.data), key)
        except (ValueError, RecursionError) as error:
            problem = f"not JSON: {error}" if isinstance(error, ValueError) else "nested too deep"
    return Message(
        namespace,
        line.data,
        found,
        timestamp=timestamp,
        source_id=f"{file}:{line.start}",
        content_type=None if problem else JSON,
        headers=((ERROR_HEADER, f"{file} byte {line.start}: {problem}".encode()),)
        if problem
        else (),
    )


def _document(data: bytes) -> Any:  # noqa: ANN401 - any JSON value
    return _DECODER.decode(data.decode())


def _key(document: Any, name: str | None) -> bytes | None:  # noqa: ANN401 - any JSON value
    """Return the key of *document*: text as it is, a number as it is written."""
    value = document.get(name) if name is not None and isinstance(document, dict) else None
    if value is None:
        return None
    if isinstance(value, dict | list):
        raise ValueError(f"the key field {name!r} holds no text or number")  # noqa: TRY004 - one of many ways a line can be wrong
    return str(value).lower().encode() if isinstance(value, bool) else str(value).encode()
