"""Rows by the server's COPY in its binary format, fetched without an object for each value.

See "COPY", "Binary Format" in PostgreSQL's manual::

    signature:11 flags:4 extension:4 (fields:2 (length:4 bytes)*)* end:2
"""

from __future__ import annotations

import select
from array import array
from struct import Struct
from time import monotonic
from typing import TYPE_CHECKING, Final

import psycopg
import pyarrow as pa
from psycopg import generators, pq

if TYPE_CHECKING:
    from psycopg import sql

    from transporter_adaptors.postgres.session import BoundedConnection

_SIGNATURE: Final = 19
_END: Final = b"\xff\xff"
_length_at: Final = Struct(">i").unpack_from


def fetch_copy(connection: BoundedConnection, query: sql.Composed) -> list[bytes]:
    """Return the rows of *query*, a COPY … TO STDOUT in the binary format, in their order.

    Raises:
        psycopg.Error: the server refuses the query, or the session was lost or is silent.

    """
    pgconn, rows = connection.pgconn, list[bytes]()
    pgconn.send_query(query.as_bytes(connection))
    (result,) = connection.wait(generators.execute(pgconn))
    if result.status != pq.ExecStatus.COPY_OUT:
        raise psycopg.errors.error_from_result(result)
    waiting = select.poll()
    waiting.register(pgconn.socket, select.POLLIN)
    ends = monotonic() + connection.patience
    while True:
        size, data = pgconn.get_copy_data(1)
        if size > 0:
            rows.append(bytes(data))
        elif size < 0:
            break
        elif waiting.poll(max(0.0, ends - monotonic()) * 1000):
            pgconn.consume_input()
            ends = monotonic() + connection.patience
        else:
            pgconn.finish()
            text = f"the server did not answer within {connection.patience:g} s"
            raise psycopg.OperationalError(text)
    # get_result() would wait for the server without a limit, and no other thread would run.
    for result in connection.wait(generators.fetch_many(pgconn)):
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result)
    rows[0] = rows[0][_SIGNATURE:]
    rows[-1] = rows[-1].removesuffix(_END)
    return [row for row in rows if row]


def split_fields(rows: list[bytes], count: int) -> list[pa.BinaryArray]:
    """Return the fields of *rows*, which have *count* values each and no NULL, column by column."""
    edges, at = array("i"), 0
    append = edges.append
    for row in rows:
        place = 2
        for _ in range(count):
            begin = place + 4
            place = begin + _length_at(row, place)[0]
            append(at + begin)
            append(at + place)
        at += len(row)
    append(at)
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(b"".join(rows))]
    texts = pa.BinaryArray.from_buffers(pa.binary(), len(edges) - 1, buffers)
    # Every second text is a value, and those between are what is between values.
    step = 2 * count
    return [texts.take(pa.arange(2 * field, step * len(rows), step)) for field in range(count)]
