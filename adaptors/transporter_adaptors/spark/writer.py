"""Writer of entries, as a Spark DataFrame, to any sink that Spark supports, with its settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Self
from urllib.parse import unquote, urlsplit

from pydantic import Field, ValidationInfo, field_validator, model_validator

from transporter.adaptor import AdaptorConfig, Finding
from transporter.errors import RouteFault, SinkUnavailable
from transporter.units import resolve_path
from transporter_adaptors.rights import check_writable
from transporter_adaptors.spark.folder import DataFolder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transporter.adaptor import DataFrameSlice, StoredOffset, WriterContext

_MARK: Final = "mapreduce.fileoutputcommitter.marksuccessfuljobs"
"""Hadoop's setting for a file ``_SUCCESS``, which our own commit record replaces."""

_FILES: Final = ("avro", "csv", "json", "orc", "parquet", "text", "xml")
"""Formats that are folders of files, in which the writer itself can commit slices."""
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_EVERYWHERE: Final = "file:///"

_Name = Annotated[str, Field(min_length=1)]


class SparkWriterConfig(AdaptorConfig):
    """The Spark sink to write to, and its location."""

    format: _Name = "parquet"
    """Argument of ``DataFrameWriter.format``: ``parquet``, ``json``, ``jdbc``, ``delta`` …"""

    path: _Name | None = None
    """A folder, relative to the pipeline file's, or a URL of a file system that Spark supports."""

    table: _Name | None = None
    """Table that ``saveAsTable`` appends to, instead of a path."""

    partition_by: tuple[_Name, ...] = ()
    """Columns that become folders (``region=EU/``)."""

    # Out of every repr. Most are not secrets. Those that a name or a text reveals are redacted.
    options: dict[str, str] = Field(default={}, repr=False)
    """Options of the format, as in its own documentation."""

    drop: tuple[_Name, ...] = ()
    """Columns that are not written, such as ``offset``."""

    @field_validator("path")
    @classmethod
    def _resolve_path(cls, path: str | None, info: ValidationInfo) -> str | None:
        if path is None:
            return None
        if not _URL.match(path):
            return str(resolve_path(Path(path), info))
        if "\0" in unquote(path):
            raise ValueError("is not a path: it holds a NUL character")
        return path

    @field_validator("options", mode="before")
    @classmethod
    def _spell_options(cls, options: Any) -> Any:  # noqa: ANN401 - whatever the file has
        if not isinstance(options, dict):
            return options
        return {key: _option_text(value) for key, value in options.items()}

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        if self.path is not None and self.table is not None:
            raise ValueError("takes path or table, not both")
        if self.format in _FILES and self.path is None and self.table is None:
            raise ValueError(f"needs a path: the folder of the {self.format} files")
        return self

    @property
    def is_shared_folder(self) -> bool:
        """Whether the path's URL declares that all hosts of a cluster share the folder."""
        return self.path is not None and self.path.startswith(_EVERYWHERE)

    @property
    def folder(self) -> Path | None:
        """The folder in which each slice is written once, if there is one.

        On a cluster the rows in the files must be counted, which is built for Parquet.
        """
        if self.path is None or self.format not in _FILES:
            return None
        if self.is_shared_folder:
            return Path(unquote(urlsplit(self.path).path)) if self.format == "parquet" else None
        return None if _URL.match(self.path) else Path(self.path)


def _option_text(value: object) -> object:
    """Spell a YAML boolean or number the way Spark parses it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


class SparkWriter:
    """Writer that appends to files (each slice once), tables, JDBC, or any other Spark sink.

    Files in a folder of this machine are committed by one rename. Every other sink gets each
    slice at least once.
    """

    Config: ClassVar[type[AdaptorConfig]] = SparkWriterConfig

    def __init__(self, config: SparkWriterConfig) -> None:
        """Keep *config*."""
        self._config = config
        self._folder: DataFolder | None = None
        self._is_commit_unknown = False
        self._committed: StoredOffset | None = None

    def open(self, context: WriterContext) -> StoredOffset | None:
        """Finish an earlier writer's commit, and return its offset."""
        folder = self._config.folder
        if folder is None:
            return None
        self._folder = DataFolder(folder, context)
        return self._recover(self._folder)

    def save(self, frame: Any, part: DataFrameSlice) -> None:  # noqa: ANN401 - a DataFrame
        """Append *frame*."""
        config = self._config
        if self._folder is not None:
            self._save_once(frame, self._folder, part)
        elif config.table is not None:
            self._frame_writer(frame).mode("append").saveAsTable(config.table)
        else:
            self._frame_writer(frame).mode("append").save(config.path)

    def probe(self) -> Iterable[Finding]:
        """Check a folder of this machine. Only Spark itself can reach any other sink."""
        config = self._config
        if config.folder is not None:
            yield check_writable(config.folder)
        else:
            place = config.table or config.path or config.format
            yield Finding(
                f"{place}: not checked, because Spark connects when it first writes", "warning"
            )

    def close(self) -> None:
        """Forget the folder."""
        self._folder = None

    def _frame_writer(self, frame: Any) -> Any:  # noqa: ANN401 - a DataFrame, and its writer
        config = self._config
        writer = frame.drop(*config.drop).write.format(config.format).options(**config.options)
        return writer.partitionBy(*config.partition_by) if config.partition_by else writer

    def _save_once(self, frame: Any, folder: DataFolder, part: DataFrameSlice) -> None:  # noqa: ANN401
        if not self._config.is_shared_folder:
            _refuse_cluster(frame, folder.path)
        if self._is_commit_unknown:
            self._committed = self._recover(folder)
            self._is_commit_unknown = False
        written = self._written_offset(part, folder)
        if written >= part.last:
            return
        if written >= part.first:
            frame = frame.where(f"offset > {written}")
        aside = _make_aside(folder, part)
        # Not as_uri(): Hadoop does not decode a path, and would read %20 as three characters.
        self._frame_writer(frame).option(_MARK, "false").mode("append").save(f"file://{aside}")
        if self._config.is_shared_folder and written < part.first:
            _refuse_hidden_files(frame, aside, part)
        try:
            folder.commit(aside, part.generation, part.last)
        except OSError as error:
            # It may be committed already. The next attempt finds that out, and continues after it.
            self._is_commit_unknown = True
            raise SinkUnavailable(f"{folder.path}: {error}") from error

    def _written_offset(self, part: DataFrameSlice, folder: DataFolder) -> int:
        """Return the offset up to which a commit that seemed to fail has written *part*."""
        done, context = self._committed, folder.context
        mine = (context.log_id, part.generation, context.run)
        if done is None or (done.log_id, done.generation, done.run) != mine:
            return -1  # Another run's record proves nothing about our own commit.
        return done.offset

    def _recover(self, folder: DataFolder) -> StoredOffset | None:
        try:
            return folder.recover()
        except OSError as error:
            raise SinkUnavailable(f"{folder.path}: {error}") from error


def _make_aside(folder: DataFolder, part: DataFrameSlice) -> Path:
    try:
        return folder.make_aside(part.generation, part.last)
    except OSError as error:
        raise SinkUnavailable(f"{folder.path}: {error}") from error


def _refuse_cluster(frame: Any, path: Path) -> None:  # noqa: ANN401 - a DataFrame
    """Refuse a path that would leave each host of a cluster with files of its own."""
    master = frame.sparkSession.sparkContext.master
    if not master.startswith("local"):
        raise RouteFault(
            f"{path}: a path is a folder of this host, and {master} runs tasks on others; give a "
            "URL of a file system that all of them see (file:// where it is mounted everywhere)"
        )


def _refuse_hidden_files(frame: Any, aside: Path, part: DataFrameSlice) -> None:  # noqa: ANN401 - as above
    """Refuse to commit if other hosts have written elsewhere, because a mount may be missing."""
    files = frame.sparkSession.read.schema(frame.schema).parquet(f"file://{aside}")
    seen, written = files.count(), part.rows()
    if written is None:
        # A busy driver reports late, which is not a fault of the folder.
        raise SinkUnavailable(
            f"{aside}: Spark did not report in time how many rows the tasks have written"
        )
    if seen != written:
        raise RouteFault(
            f"{aside}: the engine's host sees {seen} of the {written} rows that tasks have "
            "written: the path is not the same folder on every host of the cluster"
        )
