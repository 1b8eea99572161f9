"""The values of many rows at once: columns of texts, cut out of the messages of the stream. Pure.

Each call looks at one byte of every row, so what costs is the columns, not the cells.
"""

from __future__ import annotations

from array import array
from functools import reduce
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from transporter_adaptors.postgres_cdc.runs import HEAD_END

if TYPE_CHECKING:
    from collections.abc import Sequence

_INT: Final = pa.int32()
_PADDING: Final = bytes(8)
"""Bytes behind the last row, because the length of a value is read where NULL has none."""
_HEAD: Final = pa.scalar(HEAD_END, _INT)
_ONE, _TWO, _FIVE = (pa.scalar(number, _INT) for number in (1, 2, 5))
_EIGHT, _SIXTEEN = pa.scalar(8, _INT), pa.scalar(16, _INT)
_SHORT: Final = 1 << 16
_NULL, _TEXT, _NEW = (pa.scalar(kind, pa.uint8()) for kind in b"ntN")
_FALSE: Final = pa.scalar(value=False)
_ZERO: Final = pa.scalar(0, pa.uint8())
_NOWHERE: Final = pa.scalar(None, pa.int64())
_Cell = tuple[pa.Array, pa.Array, "pa.Array | None"]


class Cells:
    """The values of the rows of one relation. Not thread-safe.

    Attributes:
        is_usual: for each message whether it has rows of texts and NULLs alone, ``None`` if all
            have. The columns have the usual rows only.

    """

    def __init__(self, messages: Sequence[bytes], count: int, *, has_old: bool = False) -> None:
        """Cut *messages* of changes, with one row of *count* columns each, 1 GiB at most.

        With *has_old* each has an old row before the new one.

        Raises:
            IndexError: a value ends beyond the last message.

        """
        self._data = b"".join([*messages, _PADDING])
        whole = pa.Array.from_buffers(pa.uint8(), len(self._data), [None, pa.py_buffer(self._data)])
        self._from = [whole.slice(offset) for offset in range(5)]
        edges = pa.py_buffer(array("i", accumulate(map(len, messages), initial=0)))
        begins = pa.Array.from_buffers(_INT, len(messages), [None, edges])
        ends = pa.Array.from_buffers(_INT, len(messages), [None, edges], offset=1)
        # A text that is longer than all messages is not one.
        self._is_short = max(map(len, messages)) < _SHORT
        at, are_usual = pc.add(begins, _HEAD), list[pa.Array]()
        self._rows: list[list[_Cell]] = []
        self.is_usual: pa.Array | None = None
        for _ in range(1 + has_old):
            if self._rows:
                are_usual.append(pc.equal(self._byte(at, 0), _NEW))
                at = pc.add(at, _ONE)
            row, usual, at = self._find(at, count)
            self._rows.append(row)
            are_usual.append(usual)
        self._select(reduce(pc.and_, are_usual, pc.equal(at, ends)))

    def leave_out_changed(self, places: Sequence[int]) -> None:
        """Leave out rows whose old and new values are not the same in the columns *places*."""
        for place in places:
            old, new = self.column(place, row=0), self.column(place)
            same = pc.equal(old, new).fill_null(_FALSE)
            self._select(pc.or_(same, pc.and_(old.is_null(), new.is_null())))

    def _select(self, chosen: pa.BooleanArray) -> None:
        """Leave out rows that are not *chosen*."""
        if chosen.true_count == len(chosen):
            return
        self._rows = [[_filter(cell, chosen) for cell in row] for row in self._rows]
        before = self.is_usual
        self.is_usual = chosen if before is None else pc.replace_with_mask(before, before, chosen)

    def _find(self, at: pa.Array, count: int) -> tuple[list[_Cell], pa.Array, pa.Array]:
        """Return begin, end and validity of every cell, which rows are usual, and their ends."""
        high, low = divmod(count, 256)
        usual = pc.and_(
            pc.equal(self._byte(at, 0), pa.scalar(high, pa.uint8())),
            pc.equal(self._byte(at, 1), pa.scalar(low, pa.uint8())),
        )
        at, found = pc.add(at, _TWO), list[_Cell]()
        for _ in range(count):
            is_text, (length, rest) = pc.equal(self._byte(at, 0), _TEXT), self._length(at)
            start = pc.add(at, _FIVE)
            end = pc.add(start, length)
            is_known = pc.equal(rest, _ZERO)
            if is_text.true_count == len(is_text):
                found.append((start, end, None))
            else:
                is_null, after = pc.equal(self._byte(at, 0), _NULL), pc.add(at, _ONE)
                start, end = pc.if_else(is_text, start, after), pc.if_else(is_text, end, after)
                found.append((start, end, is_text))
                is_known = pc.or_(is_null, pc.and_(is_text, is_known))
            usual, at = pc.and_(usual, is_known), end
        return found, usual, at

    def _byte(self, at: pa.Array, offset: int) -> pa.Array:
        return self._from[offset].take(at)

    def _length(self, at: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the length in front of a text by its lower bytes, and the bytes above those."""
        first, second, third, fourth = (self._byte(at, offset) for offset in range(1, 5))
        low = pc.add(pc.shift_left(third.cast(_INT), _EIGHT), fourth.cast(_INT))
        if self._is_short:
            return low, pc.bit_wise_or(first, second)
        return pc.add(pc.shift_left(second.cast(_INT), _SIXTEEN), low), first

    def column(self, place: int, row: int = -1) -> pa.BinaryArray:
        """Return the texts of a column, with NULLs, of the last row of each message."""
        start, end, is_text = self._rows[row][place]
        size = len(start)
        # Every second text of this array is a cell, and those between are what is between cells.
        edges = bytearray(4 * (2 * size + 1))
        with memoryview(edges).cast("i") as view:
            view[0:-1:2] = _numbers(start)
            view[1::2] = _numbers(end)
            view[2 * size] = len(self._data)
        buffers = [None, pa.py_buffer(edges), pa.py_buffer(self._data)]
        texts = pa.BinaryArray.from_buffers(pa.binary(), 2 * size, buffers)
        places = pa.arange(0, 2 * size, 2)
        return texts.take(places if is_text is None else pc.if_else(is_text, places, _NOWHERE))


def _filter(cell: _Cell, usual: pa.Array) -> _Cell:
    start, end, is_text = cell
    return start.filter(usual), end.filter(usual), is_text and is_text.filter(usual)


def _numbers(numbers: pa.Array) -> memoryview:
    """Return the memory of *numbers* of 32 bits."""
    buffer = memoryview(numbers.buffers()[1]).cast("b").cast("i")
    return buffer[numbers.offset : numbers.offset + len(numbers)]
