"""A sink that fails on configured entries, and whose configuration can change while it runs."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from transporter.adaptor import AdaptorConfig, LocalPath
from transporter.errors import Rejected

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.adaptor import Ack, Entries, WriterContext


class FailingConfig(AdaptorConfig):
    """The output path, and the kind of failure."""

    path: LocalPath
    how: str = "named"
    """``named``, ``unnamed``, ``elsewhere``, ``together``, ``exit``, ``hang``, ``allocate`` or
    ``never``."""


class FailingWriter:
    """Appends ``{"offset": …, "data": …}`` lines, and fails on entries whose ``bad`` is true.

    While a file ``<path>.mended`` exists nothing fails any more.
    """

    Config = FailingConfig

    def __init__(self, config: FailingConfig) -> None:
        self._config = config

    def open(self, context: WriterContext) -> None:
        pass

    def write(self, batch: Entries, ack: Ack) -> None:
        rows = [(entry.offset, json.loads(entry.message.data)) for entry in batch]
        if self._config.how == "unnamed" and any(self._bad(row) for _, row in rows):
            raise Rejected("the bulk was refused as a whole")
        if self._config.how == "together":
            if len(rows) > 1 and any(self._bad(row) for _, row in rows):
                raise ValueError("odd")
            rows = [(offset, {**row, "bad": False}) for offset, row in rows]
        with self._config.path.open("a") as file:
            for offset, row in rows:
                if self._bad(row):
                    fail(self._config.how)
                    named = offset + (1_000_000 if self._config.how == "elsewhere" else 0)
                    ack.fail(Rejected(f"no {row['n']} here"), named)
                    return
                file.write(json.dumps({"offset": offset, "data": row}) + "\n")
                file.flush()
                ack([offset])

    def close(self) -> None:
        pass

    def _bad(self, row: dict[str, Any]) -> bool:
        failing = row.get("bad") and self._config.how != "never"
        return bool(failing) and not self._config.path.with_suffix(".mended").exists()


def fail(how: str) -> None:
    """Fail in the ways that raise no exception."""
    if how == "exit":
        os._exit(3)
    if how == "hang":
        while True:
            time.sleep(0.01)
    if how == "allocate":
        hoard = []
        while True:
            hoard.append(bytearray(1 << 24))


def written(path: Path) -> list[dict[str, Any]]:
    """Return the delivered entries, in order."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
