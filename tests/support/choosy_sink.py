"""A sink that accepts or rejects single messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine_tools import LinesWriter

from transporter.errors import Rejected

if TYPE_CHECKING:
    from transporter.message import Message


class ChoosyWriter(LinesWriter):
    """Rejects data that begins with ``no``, and with a reason data that begins with ``why``."""

    def accepts(self, message: Message) -> bool:
        data = message.data or b""
        if data.startswith(b"why"):
            raise Rejected("this one has no customer")
        return not data.startswith(b"no")


class MendedWriter(ChoosyWriter):
    """Accepts everything once there is a file ``<path>.mended``."""

    def accepts(self, message: Message) -> bool:
        return self._beside("mended").exists() or super().accepts(message)
