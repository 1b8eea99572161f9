"""The reader's position: the number of the batch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from json import dumps, loads

from transporter.errors import SourceError


@dataclass(frozen=True, slots=True)
class Position:
    """The *batch* with this number. Numbers ascend through the life of the log.

    A queue has no place to continue from, because unacked messages are redelivered. Stored as
    JSON. Unknown keys are ignored, so later versions may add some.
    """

    batch: int

    def __str__(self) -> str:
        return dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parse the text that ``str`` wrote, or raise ``SourceError`` for anything else."""
        try:
            return cls(int(loads(text)["batch"]))
        except (ValueError, TypeError, LookupError) as error:
            raise SourceError(
                f"the log holds the position {text[:100]!r} for this reader, which was not "
                "written by a kafka-queue reader; give the reader another name"
            ) from error
