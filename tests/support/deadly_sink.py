"""A sink that ends its worker at the same entry each time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine_tools import LinesWriter

if TYPE_CHECKING:
    from transporter.message import Message


class DeadlyWriter(LinesWriter):
    """Ends its process at ``die_at``, however often that entry comes."""

    def _deliver(self, offset: int, message: Message, generation: int) -> None:
        self._beside("died").unlink(missing_ok=True)
        super()._deliver(offset, message, generation)
