"""A copy of entries as a log of its own, with the same offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from transporter.dry_run.log_copy import write_log
from transporter.log.reader import LogReader
from transporter.message import Message, concat, messages_to_batch, with_offsets

if TYPE_CHECKING:
    from pathlib import Path

MESSAGES = [
    Message("orders", b"\xff", None, "delete", headers=(("h", b"\x00"), ("n", None))),
    Message("users", None, b"k", timestamp=-5, content_type=None, source_id="s"),
    *[Message("orders", bytes(700_000), b"large")] * 6,
    *[Message("orders", b"{}", b"%d" % n) for n in range(92)],
]


@pytest.mark.parametrize(
    "kept",
    [range(100), range(1), range(1, 100, 7), [99], [0, 1, 2, 3, 50]],
    ids=["all", "first", "thinned", "last", "beginning"],
)
@pytest.mark.parametrize("first", [0, 1, 5_000_000_000])
def test_what_is_read_is_what_was_written(tmp_path: Path, kept: list[int], first: int) -> None:
    """Offsets with holes, log times, bytes and headers read back, also of several frames."""
    entries = with_offsets(messages_to_batch(MESSAGES), first, 1_700_000_000_000_000)
    chosen = entries.take(pa.array(list(kept)))
    write_log(tmp_path, chosen)
    offsets = chosen.column("offset").to_pylist()
    with LogReader(tmp_path) as reader:
        assert concat(reader.read(offsets[0], offsets[-1])) == chosen
        middle = offsets[len(offsets) // 2]
        assert concat(reader.read(middle, offsets[-1])) == chosen.slice(len(offsets) // 2)
