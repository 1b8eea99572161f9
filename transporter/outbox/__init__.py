"""Transactional outbox for applications: insert records in a transaction of your own.

It needs and imports no engine, only this package and a driver of your choice.
"""

from transporter.outbox.emitting import emit, emit_async, emit_many, emit_many_async
from transporter.outbox.record import LONGEST_TOPIC, MOST_BYTES, Record
from transporter.outbox.stashing import stash, stash_async, stash_many, stash_many_async
from transporter.outbox.table import Columns, outbox_sql

__all__ = [
    "LONGEST_TOPIC",
    "MOST_BYTES",
    "Columns",
    "Record",
    "emit",
    "emit_async",
    "emit_many",
    "emit_many_async",
    "outbox_sql",
    "stash",
    "stash_async",
    "stash_many",
    "stash_many_async",
]
