"""Writer of a trial route on Spark, which stores entries in a folder.

Spark's tasks are other processes, so entries come back in files, one for each call.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

import pyarrow as pa

from transporter.adaptor import AdaptorConfig
from transporter.dry_run.outcome import OutputRow
from transporter.message import Entries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.adaptor import Ack, WriterContext
    from transporter.message import Message

MESSAGES: Final = "transporter.dry_run.collecting_writer:Collector"
"""The writer's name for a route into a writer in Python."""
ROWS: Final = "transporter.spark.collecting_sink:RowCollector"
"""The same for a route into a sink of Spark's, with files of JSON lines."""
_ARROW: Final = ".arrow"


class CollectorConfig(AdaptorConfig):
    """The settings of :class:`Collector`."""

    folder: str


class Collector:
    """A ``Writer`` that stores entries in files."""

    Config: ClassVar[type[AdaptorConfig]] = CollectorConfig

    def __init__(self, config: CollectorConfig) -> None:
        """Store entries in the folder that *config* names."""
        self._folder = Path(config.folder)

    def open(self, context: WriterContext) -> None:
        """Do nothing."""

    def write(self, batch: Entries, ack: Ack) -> None:
        """Store *batch*. A redelivered one replaces the first."""
        path = str(self._folder / f"{batch.offsets[0]:020d}{_ARROW}")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, batch.batch.schema) as file:
            file.write_batch(batch.batch)
        ack.all()

    def close(self) -> None:
        """Do nothing."""


def read_outputs(folder: Path) -> Iterator[tuple[int, Message | OutputRow]]:
    """Yield the stored outputs in *folder* with their offsets, in the order of the calls."""
    for path in sorted(folder.iterdir()):
        yield from _read_messages(path) if path.suffix == _ARROW else _read_rows(path)


def _read_messages(path: Path) -> Iterator[tuple[int, Message]]:
    with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as file:
        for entry in Entries(file.get_batch(0)):
            yield entry.offset, entry.message


def _read_rows(path: Path) -> Iterator[tuple[int, OutputRow]]:
    with path.open(encoding="utf-8") as file:
        for offset, columns in map(json.loads, file):
            yield offset, OutputRow(columns)
