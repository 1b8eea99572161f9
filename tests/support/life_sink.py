"""A sink that records every call, and fails at the configured ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from transporter.adaptor import AdaptorConfig, LocalPath
from transporter.errors import Rejected, RouteFault, SinkTimeout, SinkUnavailable

if TYPE_CHECKING:
    from transporter.adaptor import Ack, Entries, WriterContext

ERRORS = {
    "unavailable": SinkUnavailable("away"),
    "timeout": SinkTimeout("slow"),
    "fault": RouteFault("no rights"),
    "rejected": Rejected("no"),
    "odd": ValueError("odd"),
}


class LifeConfig(AdaptorConfig):
    """Path of the record of calls, and the failure of each failing call by number, from 0 on."""

    path: LocalPath
    fails: dict[int, Literal["unavailable", "timeout", "fault", "rejected", "odd"]] = Field(
        default_factory=dict
    )


class LifeWriter:
    """Writes ``<object> <call>`` lines. The first object is 1."""

    Config = LifeConfig

    def __init__(self, config: LifeConfig) -> None:
        self._config = config
        self._number = 1 + sum(line.endswith(" init") for line in self._noted())
        self._note("init")

    def open(self, context: WriterContext) -> None:
        self._fail(self._note("open"))

    def write(self, batch: Entries, ack: Ack) -> None:
        offsets = batch.offsets
        self._fail(self._note(f"write {offsets[0]}..{offsets[-1]}"))
        ack.all()

    def close(self) -> None:
        self._note("close")

    def _note(self, call: str) -> int:
        """Record *call*. Return its number."""
        number = len(self._noted())
        with self._config.path.open("a") as file:
            file.write(f"{self._number} {call}\n")
        return number

    def _noted(self) -> list[str]:
        path = self._config.path
        return path.read_text().splitlines() if path.exists() else []

    def _fail(self, number: int) -> None:
        if number in self._config.fails:
            raise ERRORS[self._config.fails[number]]
