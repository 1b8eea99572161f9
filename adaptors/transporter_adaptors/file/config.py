"""Settings of the file reader and the file writer."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from transporter.adaptor import AdaptorConfig, Duration, LocalPath, Size
from transporter_adaptors.rights import FileMode


class FileReaderConfig(AdaptorConfig):
    """The lines that become messages, and the field that is the key."""

    path: LocalPath
    """A file of JSON lines. Its name may hold ``*``, ``?`` and ``[…]``."""

    namespace: Annotated[str, Field(min_length=1)] | None = None
    """Namespace of every message. By default the file's name without its suffix."""

    key: Annotated[str, Field(min_length=1)] | None = None
    """Name of the field, at the top of the document, whose value is the key."""

    follow: bool = False
    """Wait for more lines at the end, instead of ending there."""

    follow_links: bool = False
    """Read the targets of symbolic links. A user with rights to make one there can then choose
    the files that are read."""

    batch_rows: Annotated[int, Field(ge=1)] = 1000
    """Maximum lines in a batch."""

    batch_bytes: Annotated[Size, Field(ge=1)] = 1024**2
    """Bytes after which a batch ends, with the line that reaches them."""

    max_line_bytes: Annotated[Size, Field(ge=1)] = 4 * 1024**2
    """Longer lines become a message with an error header and their beginning."""


class FileWriterConfig(AdaptorConfig):
    """Destination and content of the lines, and the beginnings of further files."""

    path: Literal["-"] | LocalPath
    """The file that lines are appended to, or ``-`` for standard output."""

    format: Literal["json", "data"] = "json"
    """``json``: the whole entry, one object a line. ``data``: its data and nothing else."""

    exact_after: Literal["kill", "power-cut"] = "kill"
    """Event that repeats no line. ``power-cut`` costs a second sync a slice."""

    mode: FileMode = "0600"
    """Rights of the files it makes, whatever the umask is. Existing files keep their own."""

    roll_bytes: Annotated[Size, Field(ge=1)] | None = None
    """Begin the next numbered file before a line that would make this one larger."""

    roll_every: Annotated[Duration, Field(ge=1)] | None = None
    """Begin the next numbered file with the first entry that was logged in a later period."""

    @model_validator(mode="after")
    def _check_standard_output(self) -> Self:
        if self.path == "-" and self.has_numbered_files:
            raise ValueError("standard output cannot roll: name a file, or leave out roll_*")
        if self.path == "-" and "mode" in self.model_fields_set:
            raise ValueError("mode has no effect on standard output: leave it out")
        return self

    @property
    def has_numbered_files(self) -> bool:
        """Whether there are numbered files."""
        return self.roll_bytes is not None or self.roll_every is not None
