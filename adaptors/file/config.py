"""Settings of the file reader and the file writer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from transporter.adaptor import AdaptorConfig, LocalPath, Size


class FileReaderConfig(AdaptorConfig):
    """Which lines become messages, and what of them is the key."""

    path: LocalPath
    """A file of JSON lines; its name may hold ``*``, ``?`` and ``[…]``."""

    namespace: Annotated[str, Field(min_length=1)] | None = None
    """Namespace of every message; without it the file's name without its suffix."""

    key: Annotated[str, Field(min_length=1)] | None = None
    """Name of the field, at the top of the document, whose value is the key."""

    follow: bool = False
    """Wait for more at the end, instead of ending there."""

    batch_rows: Annotated[int, Field(ge=1)] = 1000
    """Lines in a batch, at most."""

    batch_bytes: Annotated[Size, Field(ge=1)] = 1024**2
    """Bytes after which a batch ends, with the line that reaches them."""

    max_line_bytes: Annotated[Size, Field(ge=1)] = 4 * 1024**2
    """Longer lines become a message with an error header and their beginning."""


class FileWriterConfig(AdaptorConfig):
    """Where the lines go, and what is in them."""

    path: Literal["-"] | LocalPath
    """The file that lines are appended to; ``-`` for standard output."""

    format: Literal["json", "data"] = "json"
    """``json``: the whole entry, one object a line. ``data``: its data and nothing else."""
