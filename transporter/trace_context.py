"""The W3C trace context of a message: its headers ``traceparent`` and ``tracestate``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

PARENT: Final = "traceparent"
STATE: Final = "tracestate"

# Version 00 has four fields. Later ones may append more. Version ff and ids of zeros are invalid.
_PARENT: Final = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?",
    re.DOTALL,
)
_STATE: Final = re.compile(rb"[!-~](?:[\t -~]*[!-~])?")
_LONGEST_STATE: Final = 512
_SAMPLED: Final = 1


class TraceContext(NamedTuple):
    """A valid ``traceparent``, and the ``tracestate`` beside it if that is valid."""

    parent: str
    state: str | None

    @property
    def trace_id(self) -> int:
        """The id of the trace."""
        return int(self.parent.split("-")[1], 16)

    @property
    def span_id(self) -> int:
        """The id of the span that produced the message."""
        return int(self.parent.split("-")[2], 16)

    @property
    def sampled(self) -> bool:
        """True if the producer records the trace."""
        return bool(int(self.parent.split("-")[3], 16) & _SAMPLED)


def trace_context(headers: Iterable[tuple[str, bytes | None]]) -> TraceContext | None:
    """Return the context in *headers*, or ``None`` without a valid one.

    Names are compared without case, as in HTTP. If a name repeats, the last header counts.
    """
    found = {name.lower(): value for name, value in headers}
    parent = found.get(PARENT)
    if parent is None or not _is_parent(parent):
        return None
    state = found.get(STATE)
    valid = state is not None and len(state) <= _LONGEST_STATE and _STATE.fullmatch(state)
    return TraceContext(parent.decode(), state.decode() if state and valid else None)


def _is_parent(value: bytes) -> bool:
    found = _PARENT.fullmatch(value)
    if found is None or not value.isascii() or not value.decode().isprintable():
        return False
    return found[4] is None or not value.startswith(b"00")
