"""Reading lines with their places, and what a line means. Nothing here opens a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import orjson
import pyarrow as pa

from transporter.message import (
    ERROR_HEADER,
    HEADERS_TYPE,
    JSON,
    MESSAGE_SCHEMA,
    Message,
    messages_to_batch,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

_SKIP_BYTES: Final = 1024**2


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


# Numbers stay text: a key is what the line says, and no digit limit applies.
_DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_constant)


class Line(NamedTuple):
    """A line without its end, the byte where it begins, and why it cannot be used, if so."""

    data: bytes
    start: int
    problem: str | None = None


class Origin(NamedTuple):
    """What all lines of a file share; ``key`` names the field that holds the key."""

    namespace: str
    file: str
    timestamp: int
    key: str | None


def read_lines(file: BinaryIO, rows: int, size: int, limit: int, *, partial: bool) -> list[Line]:
    """Return the next lines of *file*: at most *rows*, and none behind *size* bytes of them.

    Blank ones are passed over. None, and no move, when there is no whole one. A
    last line without an end counts when *partial*. Of a line of more than *limit*
    bytes only the first *limit* are kept.
    """
    found: list[Line] = []
    place, room, most = file.tell(), size, limit + 1
    while room > 0 and len(found) < rows:
        data = file.readline(most)
        if data[-1:] != b"\n":
            line, place = _unended(file, data, place, limit, partial=partial)
            if line is None:
                break
        else:
            line, place = Line(data[:-1], place), place + len(data)
        if not line.data.isspace() and line.data:
            found.append(line)
            room -= len(line.data)
    return found


def _unended(
    file: BinaryIO, data: bytes, start: int, limit: int, *, partial: bool
) -> tuple[Line | None, int]:
    """Return the line that begins with *data*, longer than the limit or the last, and its end."""
    rest = data
    while rest and not rest.endswith(b"\n"):
        rest = file.readline(_SKIP_BYTES)
    if not data or not (rest or partial):
        file.seek(start)
        return None, start
    long = len(data) > limit
    problem = f"the line has more than {limit} bytes" if long else None
    return Line(data[:limit], start, problem), file.tell()


def batch_of(lines: Sequence[Line], origin: Origin) -> pa.RecordBatch:
    """Return *lines* as messages; one that is not JSON carries an error header instead."""
    try:
        keys = [_quick_key(line, origin.key) for line in lines]
    except ValueError:
        # A quick look finds fault with more than is wrong, and does not say what it is.
        return messages_to_batch([message_of(line, origin) for line in lines])
    count = len(lines)
    columns = {
        "namespace": _repeated(origin.namespace, "namespace", count),
        "op": _repeated("insert", "op", count),
        "phase": _repeated("sync", "phase", count),
        "key": pa.array(keys, pa.binary()),
        "timestamp": _repeated(origin.timestamp, "timestamp", count),
        "source_id": pa.array([f"{origin.file}:{line.start}" for line in lines], pa.string()),
        "data": pa.array([line.data for line in lines], pa.binary()),
        "content_type": _repeated(JSON, "content_type", count),
        "headers": pa.array([()] * count, HEADERS_TYPE),
    }
    return pa.RecordBatch.from_pydict(columns, schema=MESSAGE_SCHEMA)


def _repeated(value: object, column: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, MESSAGE_SCHEMA.field(column).type), count)


def _quick_key(line: Line, name: str | None) -> bytes | None:
    """Return the key of *line*; raise :class:`ValueError` when this is not the way to find it."""
    if line.problem is not None:
        raise ValueError(line.problem)
    document = orjson.loads(line.data)
    value = document.get(name) if name is not None and type(document) is dict else None
    if value is None:
        return None
    if type(value) is str:
        return value.encode()
    # Other numbers are not what the line says: 1.10, -0, 2 ** 70.
    if type(value) is int and value:
        return b"%d" % value
    raise ValueError("no text and no plain number")


def message_of(line: Line, origin: Origin) -> Message:
    """Return *line* as a message; one that is not JSON carries an error header instead."""
    problem, found = line.problem, None
    if problem is None:
        try:
            found = _key(_document(line.data), origin.key)
        except (ValueError, RecursionError) as error:
            problem = f"not JSON: {error}" if isinstance(error, ValueError) else "nested too deep"
    return Message(
        origin.namespace,
        line.data,
        found,
        timestamp=origin.timestamp,
        source_id=f"{origin.file}:{line.start}",
        content_type=None if problem else JSON,
        headers=((ERROR_HEADER, f"{origin.file} byte {line.start}: {problem}".encode()),)
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
