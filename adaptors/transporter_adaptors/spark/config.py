"""Settings of the spark writer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, Self
from urllib.parse import unquote, urlsplit

from pydantic import Field, ValidationInfo, field_validator, model_validator

from transporter.adaptor import AdaptorConfig
from transporter.units import resolve_path

FILES: Final = ("avro", "csv", "json", "orc", "parquet", "text", "xml")
"""Formats that are folders of files, in which the writer itself can commit slices."""
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_EVERYWHERE: Final = "file:///"

Name = Annotated[str, Field(min_length=1)]


class SparkWriterConfig(AdaptorConfig):
    """The Spark sink to write to, and its location."""

    format: Name = "parquet"
    """Argument of ``DataFrameWriter.format``: ``parquet``, ``json``, ``jdbc``, ``delta`` …"""

    path: Name | None = None
    """A folder, relative to the pipeline file's, or a URL of a file system that Spark supports."""

    table: Name | None = None
    """Table that ``saveAsTable`` appends to, instead of a path."""

    partition_by: tuple[Name, ...] = ()
    """Columns that become folders (``region=EU/``)."""

    # Out of every repr. Most are not secrets. Those that a name or a text reveals are redacted.
    options: dict[str, str] = Field(default={}, repr=False)
    """Options of the format, as in its own documentation."""

    drop: tuple[Name, ...] = ()
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
        if self.format in FILES and self.path is None and self.table is None:
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
        if self.path is None or self.format not in FILES:
            return None
        if self.is_shared_folder:
            return Path(unquote(urlsplit(self.path).path)) if self.format == "parquet" else None
        return None if _URL.match(self.path) else Path(self.path)


def _option_text(value: object) -> object:
    """Spell a YAML boolean or number the way Spark parses it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value
