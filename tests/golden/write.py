"""Writer of the golden log of this format version: ``python tests/golden/write.py FOLDER``.

Run it once for each released format version, with that version. Its output is never written
again, because later versions must go on reading it (Invariant 19).
"""

from __future__ import annotations

import sys
from pathlib import Path

from transporter.log.commit_log import CommitLog
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import NAMES, OffsetLog, route_folder
from transporter.offsets.record import decode_records
from transporter.offsets.state import Range

MESSAGES = [
    Message(
        "orders.placed",
        b'{"total": 12345678901234567890.10}',
        b"k1",
        timestamp=1_700_000_000_123_456,
        source_id="outbox/1",
        headers=(("trace", b"\x00\xff"), ("trace", b"2"), ("none", None)),
    ),
    Message("orders.placed", None, b"k1", op="delete", phase="complete", timestamp=-1),
    Message("users.né", b"\x00\xff", None, op="command", phase="copy", content_type=None),
]


def write(folder: Path) -> None:
    """Write a log of two segments and one left uncleanly, with its offset logs."""
    times = iter(range(1_700_000_000_000_000, 1_800_000_000_000_000, 1_000_000))
    with CommitLog.open(folder, segment_bytes=900, clock=lambda: next(times)) as log:
        log.append(messages_to_batch(MESSAGES), "outbox", "lsn 1")
        # Large enough to be compressed.
        log.append(messages_to_batch(MESSAGES * 40), "outbox", "lsn 2")
        log.append(messages_to_batch(MESSAGES[:1]), "file", "é 3")
        with OffsetLog(folder, "orders") as orders:
            orders.settle(Range(0, 9), log.durable, {"orders.placed": 9, "users.né": 8})
            orders.settle(Range(12, 12, "operator"), log.durable)
            orders.begin_replay(2, 5)
            orders.advance_replay(3, 1)
        OffsetLog(folder, "fresh").close()
    for name in ("lock", "reserve"):
        (folder / name).unlink()
    _cut_reserved_space(folder)


def _cut_reserved_space(folder: Path) -> None:
    for route in ("orders", "fresh"):
        for name in NAMES:
            path = route_folder(folder, route) / name
            if path.exists():
                data = path.read_bytes()
                used = sum(len(record.encode()) for record in decode_records(data, name))
                path.write_bytes(data[:used])


if __name__ == "__main__":
    write(Path(sys.argv[1]))
