"""A sink that says of single messages whether it takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine_tools import LinesWriter

from transporter.errors import Rejected

if TYPE_CHECKING:
    from transporter.message import Message


class ChoosyWriter(LinesWriter):
    """Takes no data that begins with ``no``, and gives a reason for what begins with ``why``."""

    def accepts(self, message: Message) -> bool:
        data = message.data or b""
        if data.startswith(b"why"):
            raise Rejected("this one has no customer")
        return not data.startswith(b"no")


class MendedWriter(ChoosyWriter):
    """Takes everything once there is a file ``<path>.mended``."""

    def accepts(self, message: Message) -> bool:
        return self._beside("mended").exists() or super().accepts(message)
