"""Rows packed into columns become the same messages as rows one by one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transporter_adaptors.postgres import packed as packed_rows
from transporter_adaptors.postgres.packed import Packed, unpack_rows
from transporter_adaptors.postgres.rows import EARLIEST, LATEST, OutboxRow, to_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transporter_adaptors.postgres.rows import Texts

GOOD = OutboxRow(7, 5, b"orders", b"k1", b'{"a":1}', [b"h"], [b"v"])
REFUSALS = (TypeError, ValueError, pa.ArrowException)


@pytest.fixture(params=["cells", "arrays"], scope="module", autouse=True)
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Unpack a few rows cell by cell, and then by arrays, as many rows are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_rows, "FEW", 0 if request.param == "arrays" else 1000)
        yield


def spelt(array: Texts) -> bytes:
    """Return *array* as PostgreSQL writes it."""
    return b"{%b}" % b",".join(
        spelt(cell) if isinstance(cell, list) else _cell(cell) for cell in array
    )


def _cell(cell: bytes | None) -> bytes:
    if cell is None:
        return b"NULL"
    plain = cell and cell.upper() != b"NULL" and not set(cell) & set(b'{}",\\ \t\n\r\v\f')
    if plain:
        return cell
    return b'"%b"' % cell.replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def joined(cells: Sequence[bytes | None], between: bytes = b"") -> bytes | None:
    """Join the cells that are not NULL, as ``string_agg`` does."""
    present = [cell for cell in cells if cell is not None]
    return between.join(present) if present else None


def count(array: Texts | None) -> int | None:
    """Count cells as ``cardinality`` does, through all dimensions."""
    if array is None:
        return None
    return sum(len(cell) if isinstance(cell, list) else 1 for cell in array)


def packed(*rows: OutboxRow) -> Packed:
    """Return *rows* as the server packs them."""
    ids, times, topics, keys, values, names, contents = zip(*rows, strict=True)
    texts = [
        part
        for column in (topics, keys, values)
        for part in ([None if cell is None else len(cell) for cell in column], joined(column))
    ]
    arrays = [
        part
        for column in (names, contents)
        for part in (
            [count(array) for array in column],
            joined([None if array is None else spelt(array) for array in column], b","),
        )
    ]
    return Packed(list(ids), list(times), *texts, *arrays)  # type: ignore[arg-type] # six pairs


TEXT = st.text(st.sampled_from('a,"\\{}[]= \nNULnulü鍵'), max_size=6).map(str.encode)
HEADERS = st.lists(st.tuples(TEXT, st.none() | TEXT), max_size=3)
PLAIN = st.lists(st.tuples(st.just(b"h"), st.none() | st.sampled_from([b"v", b"w]"])), max_size=3)


def row(
    number: int, time: int, texts: tuple[bytes, bytes | None, bytes | None], pairs: list
) -> OutboxRow:  # type: ignore[type-arg]
    """Return a sound row."""
    return OutboxRow(
        number, time, *texts, [name for name, _ in pairs], [value for _, value in pairs]
    )


ROWS = st.builds(
    row,
    st.integers(-(2**63), 2**63 - 1),
    st.integers(EARLIEST, LATEST),
    st.tuples(TEXT, st.none() | TEXT, st.none() | TEXT),
    HEADERS | PLAIN,
)


@given(st.lists(ROWS, min_size=1, max_size=5, unique_by=lambda found: found.id))
def test_packed_rows_become_the_same_messages(rows: list[OutboxRow]) -> None:
    """Columns make the same messages of any sound rows, in the order of ids."""
    found = packed(*rows)
    ambiguous = b"]={" in (found.names or b"") + (found.contents or b"")
    if ambiguous or any(b"{{" in (part or b"") for part in (found.names, found.contents)):
        with pytest.raises(REFUSALS):
            unpack_rows(found, "outbox")
        return
    batch = unpack_rows(found, "outbox")
    batch.validate(full=True)
    assert batch.equals(to_batch(sorted(rows, key=lambda one: one.id), "outbox"))


@pytest.mark.parametrize("quoted", [b"v", b"v w"])
@pytest.mark.parametrize(
    "change",
    [
        {"header_keys": [b"a", b"b"]},
        {"header_keys": [None]},
        {"header_keys": [[b"a"]]},
        {"header_values": [[b"a b"]]},
        {"header_keys": None},
        {"header_values": None},
        {"header_keys": None, "header_values": None},
        {"header_keys": [b"\xff"]},
        {"topic": None},
        {"topic": b"\xff"},
        {"key": b"\xff"},
        {"value": b"\xff"},
        {"header_values": [b"\xff"]},
        {"create_time": 2**63 - 1},
        {"create_time": -(2**63)},
        {"create_time": LATEST + 1},
        {"create_time": EARLIEST - 1},
    ],
)
def test_a_row_with_a_flaw_is_refused(change: dict[str, object], quoted: bytes) -> None:
    """One bad row among good ones is refused, with or without quotes in the arrays."""
    good = GOOD._replace(header_values=[quoted])
    bad = good._replace(**change)  # type: ignore[arg-type] # names of columns
    with pytest.raises(REFUSALS):
        unpack_rows(packed(good, bad._replace(id=8), good._replace(id=9)), "outbox")


def test_arrays_with_bounds_of_their_own_are_refused() -> None:
    """The bounds before such an array are not taken for an element."""
    found = packed(GOOD)._replace(contents=b"[2:2]={v}")
    with pytest.raises(ValueError, match="bounds"):
        unpack_rows(found, "outbox")


@pytest.mark.parametrize("lengths", [[6], [8], [None]])
def test_lengths_that_do_not_add_up_are_refused(lengths: list[int | None]) -> None:
    """A text with more or fewer bytes than its lengths add up to is refused."""
    refused = partial(unpack_rows, packed(GOOD)._replace(value_lengths=lengths), "outbox")
    with pytest.raises(ValueError, match="lengths"):
        refused()


def test_the_value_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The column of many rows uses the buffer of the text that the driver received."""
    monkeypatch.setattr(packed_rows, "FEW", 1)
    found = packed(GOOD, GOOD._replace(id=8))
    assert found.values is not None
    data = unpack_rows(found, "outbox").column("data")
    assert data.buffers()[2].address == pa.py_buffer(found.values).address


def test_large_values_of_a_few_rows_are_not_copied() -> None:
    """Cells are cut only where copying them costs less than arrays."""
    found = packed(GOOD._replace(value=b'{"a":"%b"}' % (b"x" * 100_000)))
    assert found.values is not None
    data = unpack_rows(found, "outbox").column("data")
    assert data.buffers()[2].address == pa.py_buffer(found.values).address
