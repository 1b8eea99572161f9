"""Lines read in bulk become the same messages as lines read one by one."""

from __future__ import annotations

import io
import json

from hypothesis import example, given, settings
from hypothesis import strategies as st
from transporter_adaptors.file.lines import (
    Origin,
    TextLine,
    TextLines,
    read_lines,
    to_batch,
    to_message,
)

from transporter.message import Entries, messages_to_batch, with_offsets

ORIGIN = Origin("orders", "orders.jsonl", 5, "id")
KEYS = st.one_of(
    st.text(),
    st.integers(),
    st.floats(),
    st.none(),
    st.booleans(),
    st.just([]),
    st.sampled_from([-0.0, 2**64, -(2**63), 10**400]),
)
DOCUMENTS = st.one_of(
    st.builds(lambda key: json.dumps({"id": key}).encode(), KEYS),
    st.builds(lambda key: json.dumps([key], ensure_ascii=False).encode(errors="replace"), KEYS),
    st.sampled_from(
        [b"-0", b'{"id":-0}', b'{"id":1.10}', b'{"id":1e3}', b'{"id":1,"id":"b"}', b"{", b"\xff"]
    ),
    st.binary(max_size=5).filter(lambda data: b"\n" not in data),
)


@settings(deadline=None)
@given(st.lists(DOCUMENTS, min_size=1, max_size=4), st.sampled_from(["id", "none", None]))
@example([b"[" * 3000 + b"]" * 3000], "id")
def test_in_bulk_is_as_one_by_one(documents: list[bytes], key: str | None) -> None:
    """The bulk path makes the same messages of any lines as the line-by-line path."""
    origin = ORIGIN._replace(key=key)
    lines = TextLines(documents, list(range(len(documents))))
    made = to_batch(lines, origin)
    expected = messages_to_batch([to_message(line, origin) for line in lines])
    assert made.schema == expected.schema
    assert list(Entries(with_offsets(made, 0, 0))) == list(Entries(with_offsets(expected, 0, 0)))


class InBlocks(io.BytesIO):
    """A file whose blocks are only *most* bytes long."""

    def __init__(self, content: bytes, most: int) -> None:
        super().__init__(content)
        self._most = most

    def read(self, size: int | None = -1) -> bytes:
        """Return the next block."""
        return super().read(min(size or 0, self._most))


@settings(deadline=None)
@given(
    st.lists(st.binary(max_size=12) | st.text(" \t", max_size=3).map(str.encode), max_size=12),
    st.integers(1, 5),
    st.integers(1, 30),
    st.integers(1, 8),
    st.integers(1, 40),
)
@example([b" ", b" ", b" ", b"x"], 5, 1, 8, 40)
def test_lines_are_those_of_a_split(
    parts: list[bytes], rows: int, size: int, limit: int, block: int
) -> None:
    """All lines are returned, each with its place, however few are read at a time."""
    content = b"\n".join(parts)
    file = InBlocks(content, block)
    found: list[TextLine] = []
    while taken := (
        read_lines(file, rows, size, limit, partial=False)
        or read_lines(file, rows, size, limit, partial=True)
    ):
        assert len(taken) <= rows
        assert sum(map(len, taken.data[:-1])) < size
        found += taken
    place, expected = 0, []
    for line in content.split(b"\n"):
        if line[:limit].strip():
            expected.append((line[:limit], place, len(line) > limit))
        place += len(line) + 1
    assert [(line.data, line.start, line.problem is not None) for line in found] == expected
