"""A small real process over a log that reports acks, their time, and the reason for its end.

``python -m power.appender DIRECTORY`` opens the log and the offset log of one route twice, appends
and settles, and writes a line for each acknowledgement: ``acked <offset> <data>``, ``settled
<offset>``, ``done``. It ends as the engine does: with an error of ours in one line and its exit
code, else with a traceback.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from transporter.errors import LogFull, TransporterError
from transporter.log.commit_log import CommitLog
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import OffsetLog, proved_offset
from transporter.offsets.state import Range

ROUTE: Final = "orders"
APPENDS: Final = 5


def tell(line: str) -> None:
    """Write one line to standard output, in one call and at once."""
    os.write(1, f"{line}\n".encode())


def append(log: CommitLog, number: int) -> None:
    """Append one message. A full disk is tried again, as a reader does (Invariant 14)."""
    data = f"{number}/{'x' * 300}"
    batch = messages_to_batch([Message("n", data.encode(), b"k")])
    try:
        offset, _ = log.append(batch, "r", str(number))
    except LogFull:
        tell("full")
        offset, _ = log.append(batch, "r", str(number))
    tell(f"acked {offset} {data}")


def work(directory: Path, first: int) -> None:
    """Open, append and settle messages from number *first* on, and close."""
    with (
        CommitLog.open(
            directory, proved=lambda: proved_offset(directory), segment_bytes=3000
        ) as log,
        OffsetLog(directory, ROUTE) as offsets,
    ):
        for number in range(first, first + APPENDS):
            append(log, number)
            offsets.settle(Range(offsets.state.next_unsettled(), log.durable), log.durable)
            if number % 2:
                offsets.sync()
                tell(f"settled {offsets.state.watermark}")


def main(directory: Path) -> int:
    """Work twice. Return the exit code."""
    try:
        work(directory, 0)
        work(directory, APPENDS)
    except TransporterError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    tell("done")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
