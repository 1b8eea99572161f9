"""Reading of lines with their places, and their conversion to messages. Opens no file."""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
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
    from collections.abc import Iterator
    from typing import BinaryIO

_SKIP_BYTES: Final = 1024**2
_BLOCK_BYTES: Final = 256 * 1024
"""Bytes read at once: more than a batch of usual lines, because the rest is read again."""


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


# Numbers stay text: a key is spelt as in the line, and no digit limit applies.
_DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse_constant)


class TextLine(NamedTuple):
    """A line without its end, the byte where it begins, and its flaw, if any."""

    data: bytes
    start: int
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class TextLines:
    """Lines as columns, because a tuple for each line costs as much as reading it.

    ``problems`` holds the flaws of unusable lines by their index.
    """

    data: list[bytes] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    problems: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[TextLine]:
        for index, (data, start) in enumerate(zip(self.data, self.starts, strict=True)):
            yield TextLine(data, start, self.problems.get(index))

    def add(self, line: TextLine) -> None:
        """Append *line*, unless it is blank."""
        if not line.data or line.data.isspace():
            return
        if line.problem is not None:
            self.problems[len(self.data)] = line.problem
        self.data.append(line.data)
        self.starts.append(line.start)

    def add_whole(self, data: list[bytes], start: int) -> None:
        """Append those lines of *data* that are not blank. The first is at *start*.

        Each ended with one byte, and none has a flaw.
        """
        starts = accumulate((len(each) + 1 for each in data), initial=start)
        if all(data) and not any(map(bytes.isspace, data)):
            self.data.extend(data)
            self.starts.extend(list(starts)[:-1])
            return
        for each, place in zip(data, starts, strict=False):
            self.add(TextLine(each, place))


class Origin(NamedTuple):
    """Values that all lines of a file share. ``key`` names the field that holds the key."""

    namespace: str
    file: str
    timestamp: int
    key: str | None


def read_lines(file: BinaryIO, rows: int, size: int, limit: int, *, partial: bool) -> TextLines:
    """Return the next lines of *file*: at most *rows*, and none behind *size* bytes of them.

    Blank lines are skipped. Without a whole line there are none, and the file's place stays. A
    last line without an end counts when *partial*. Of a line of more than *limit*
    bytes only the first *limit* are kept.
    """
    found, place, room = TextLines(), file.tell(), size
    while room > 0 and (count := len(found)) < rows:
        whole = _read_whole_lines(file, rows - count, room)
        if whole and max(map(len, whole)) <= limit:
            found.add_whole(whole, place)
            place += sum(map(len, whole)) + len(whole)
            file.seek(place)
        else:
            file.seek(place)
            line = _read_single_line(file, place, limit, partial=partial)
            if line is None:
                break
            found.add(line)
            place = file.tell()
        room -= sum(map(len, found.data[count:]))  # blank lines take no room
    return found


def _read_whole_lines(file: BinaryIO, rows: int, room: int) -> list[bytes]:
    """Return lines of the next block that have ends, through the one that fills *room*."""
    lines = file.read(_BLOCK_BYTES).split(b"\n", rows)
    lines.pop()  # text that has no end here, or is one line too many
    return lines[: bisect_left(list(accumulate(map(len, lines))), room) + 1]


def _read_single_line(file: BinaryIO, start: int, limit: int, *, partial: bool) -> TextLine | None:
    """Return the line that begins at *start*, the place of *file*, however long it is."""
    data = file.readline(limit + 1)
    if data.endswith(b"\n"):
        return TextLine(data[:-1], start)
    return _read_unended_line(file, data, start, limit, partial=partial)


def _read_unended_line(
    file: BinaryIO, data: bytes, start: int, limit: int, *, partial: bool
) -> TextLine | None:
    """Return the line that begins with *data*, which is longer than the limit or the last."""
    rest = data
    while rest and not rest.endswith(b"\n"):
        rest = file.readline(_SKIP_BYTES)
    if not data or not (rest or partial):
        file.seek(start)
        return None
    long = len(data) > limit
    problem = f"the line has more than {limit} bytes" if long else None
    return TextLine(data[:limit], start, problem)


def to_batch(lines: TextLines, origin: Origin) -> pa.RecordBatch:
    """Return *lines* as messages. A line that is not JSON carries an error header instead."""
    try:
        keys = _quick_keys(lines, origin.key)
    except ValueError:
        # The quick parser refuses more than is wrong, and does not give the reason.
        return messages_to_batch([to_message(line, origin) for line in lines])
    count = len(lines)
    columns = {
        "namespace": _repeat(origin.namespace, "namespace", count),
        "op": _repeat("insert", "op", count),
        "phase": _repeat("sync", "phase", count),
        "key": pa.array(keys, pa.binary()),
        "timestamp": _repeat(origin.timestamp, "timestamp", count),
        "source_id": pa.array([f"{origin.file}:{start}" for start in lines.starts], pa.string()),
        "data": pa.array(lines.data, pa.binary()),
        "content_type": _repeat(JSON, "content_type", count),
        "headers": pa.array([()] * count, HEADERS_TYPE),
    }
    return pa.RecordBatch.from_pydict(columns, schema=MESSAGE_SCHEMA)


def _repeat(value: object, column: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, MESSAGE_SCHEMA.field(column).type), count)


def _quick_keys(lines: TextLines, name: str | None) -> list[bytes | None]:
    """Return the keys of *lines*, or raise :class:`ValueError` when this cannot find them."""
    if lines.problems:
        raise ValueError("some cannot be used")
    if name is not None:
        return [_quick_key(data, name) for data in lines.data]
    for data in lines.data:
        orjson.loads(data)
    return [None] * len(lines)


def _quick_key(data: bytes, name: str) -> bytes | None:
    document = orjson.loads(data)
    value = document.get(name) if type(document) is dict else None
    if value is None:
        return None
    if type(value) is str:
        return value.encode()
    # Other numbers would not be spelt as in the line: 1.10, -0, 2 ** 70.
    if type(value) is int and value:
        return b"%d" % value
    raise ValueError("no text and no plain number")


def to_message(line: TextLine, origin: Origin) -> Message:
    """Return *line* as a message. A line that is not JSON carries an error header instead."""
    problem, found = line.problem, None
    if problem is None:
        try:
            found = _key_of(_parse_document(line.data), origin.key)
        except (ValueError, RecursionError) as error:
            problem = f"not JSON: {error}" if isinstance(error, ValueError) else "nested too deeply"
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


def _parse_document(data: bytes) -> Any:  # noqa: ANN401 - any JSON value
    return _DECODER.decode(data.decode())


def _key_of(document: Any, name: str | None) -> bytes | None:  # noqa: ANN401 - any JSON value
    """Return the key of *document*: text as it is, a number as it is spelt."""
    value = document.get(name) if name is not None and isinstance(document, dict) else None
    if value is None:
        return None
    if isinstance(value, dict | list):
        raise ValueError(f"the key field {name!r} is not text or a number")  # noqa: TRY004 - one of many ways a line can be wrong
    return str(value).lower().encode() if isinstance(value, bool) else str(value).encode()
