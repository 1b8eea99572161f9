"""The reader's position: the batch, the lineage of its leader, and the progress of the purge."""

from __future__ import annotations

from dataclasses import dataclass
from json import dumps, loads

from transporter.errors import SourceError


@dataclass(frozen=True, slots=True)
class Position:
    """The number of a *batch*. All batches up to *purged* have left the table.

    Numbers ascend through the life of the log. Stored as JSON. Unknown keys are ignored, so
    later versions may add some.

    Attributes:
        batch: The number of the batch.
        purged: The last batch whose rows have left the table, with all batches before it.
        lineage: That of the leader that read the batch. Empty in positions of earlier versions.
    """

    batch: int
    purged: int
    lineage: str = ""

    def __str__(self) -> str:
        # Spelled out: it is written with each batch, and asdict takes ten times as long.
        return dumps({"batch": self.batch, "purged": self.purged, "lineage": self.lineage})

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parse the text that ``str`` wrote, or raise ``SourceError`` for anything else."""
        try:
            found = loads(text)
            return cls(int(found["batch"]), int(found["purged"]), str(found.get("lineage", "")))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise SourceError(
                f"the log holds the position {text[:100]!r} for this reader, which was not "
                "written by a postgres-outbox reader; give the reader another name"
            ) from error
