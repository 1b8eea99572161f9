"""Batches whose messages, in some namespaces, are replaced by the results of a function."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from transporter.message import Entries
from transporter.pipeline.steps.reencode import Made, rebuild

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from transporter.message import Entry, Message
    from transporter.pipeline.namespace_filter import NamespaceFilter


def replace_messages(
    entries: pa.RecordBatch,
    namespace: NamespaceFilter,
    transform: Callable[[Iterable[Entry]], Iterator[tuple[Message, ...]]],
) -> pa.RecordBatch:
    """Return *entries* with the messages of *namespace* replaced by the results of *transform*.

    It yields for each entry the messages that take its place. A message that it returns as given is
    not encoded again. If all are, the batch itself is returned.
    """
    mine, called = entries, repeat(object=True, times=entries.num_rows)
    if not namespace.matches_all:
        mask = namespace.mask(entries.column("namespace"))
        mine, called = entries.filter(mask), mask.to_pylist()
    given = [*Entries(mine)]
    pairs = zip(given, transform(given), strict=True)
    made: list[Made] = []
    for row, is_mine in enumerate(called):
        if not is_mine:
            made.append((row, None))
            continue
        (_, _, message), returned = next(pairs)
        made += [(row, None if new is message else (message, new)) for new in returned]
    return rebuild(entries, made)
