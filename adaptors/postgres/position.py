"""The reader's position: which batch this is, who read it, and how far rows were purged."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from json import dumps, loads

from transporter.errors import SourceError


@dataclass(frozen=True, slots=True)
class Position:
    """The *batch* with this number; all batches up to *purged* have left the table.

    *lineage* is that of the leader who read it; empty in positions of earlier versions.
    Numbers ascend through the life of the log. Stored as JSON; unknown keys are ignored, so
    that later versions may add some.
    """

    batch: int
    purged: int
    lineage: str = ""

    def __str__(self) -> str:
        return dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read what ``str`` has written; raise ``SourceError`` for anything else."""
        try:
            found = loads(text)
            return cls(int(found["batch"]), int(found["purged"]), str(found.get("lineage", "")))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise SourceError(
                f"the log holds the position {text[:100]!r} for this reader, which no "
                "postgres-outbox reader has written; give the reader another name"
            ) from error
