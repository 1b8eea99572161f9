"""View of ``top``, controlled by keys: order, filter and pause. Without side effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transporter.cli.status_table import StatusRow

ORDERS: Final = ("file", "name", "state", "lag", "per second", "parked")
"""Orders that `s` cycles through: the file's, texts ascending, numbers descending."""
_ENTER: Final = ("\r", "\n")
_ERASE: Final = ("\x7f", "\x08")
_ESCAPE: Final = "\x1b"


class TopView:
    """Order and filter of rows, and the pause."""

    def __init__(self) -> None:
        """Show all rows in the order of the pipeline file, live."""
        self.paused = False
        self.ended = False
        self._order = 0
        self._filter = ""
        self._is_typing = False

    def press(self, keys: str) -> None:
        """Handle *keys* that came at once. An arrow or a function key is ignored."""
        if len(keys) > 1 and keys.startswith(_ESCAPE):
            return
        for key in keys:
            (self._edit_filter if self._is_typing else self._run_command)(key)

    def _run_command(self, key: str) -> None:
        match key.lower():
            case "q":
                self.ended = True
            case "p" | " ":
                self.paused = not self.paused
            case "s":
                self._order = (self._order + 1) % len(ORDERS)
            case "/":
                self._is_typing = True
            case "\x1b":
                self._filter = ""

    def _edit_filter(self, key: str) -> None:
        if key in _ENTER:
            self._is_typing = False
        elif key == _ESCAPE:
            self._is_typing, self._filter = False, ""
        elif key in _ERASE:
            self._filter = self._filter[:-1]
        elif key.isprintable():
            self._filter += key

    def arrange(self, rows: Iterable[StatusRow]) -> Sequence[StatusRow]:
        """Return the *rows* that match the filter, in order."""
        wanted = self._filter.casefold()
        shown = [row for row in rows if wanted in row.name.casefold()]
        order = ORDERS[self._order]
        if order == "file":
            return shown
        if order in ("name", "state"):
            column = "" if order == "name" else order
            return sorted(shown, key=lambda row: row.cells[column])
        return sorted(shown, key=lambda row: -row.numbers.get(order, 0.0))

    @property
    def footer(self) -> str:
        """The keys, with their present effect."""
        cursor = "_" if self._is_typing else ""
        wanted = f": {self._filter}{cursor}" if self._filter or self._is_typing else ""
        pause = "p resume (paused)" if self.paused else "p pause"
        ends = "enter keep · esc clear" if self._is_typing else "q quit"
        return f"{ends} · s sort: {ORDERS[self._order]} · {pause} · / filter{wanted}"
