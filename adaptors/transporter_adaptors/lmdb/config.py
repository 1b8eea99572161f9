"""Settings of the LMDB writer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from transporter.adaptor import AdaptorConfig, LocalPath, Size
from transporter_adaptors.rights import FileMode


class LmdbWriterConfig(AdaptorConfig):
    """The database's location, and its content."""

    path: LocalPath
    """Folder of the database. Made when it does not exist."""

    layout: Literal["key", "offset"] = "key"
    """``key``: the newest data of each key. ``offset``: every entry, under its offset."""

    @property
    def upserts(self) -> bool:
        """Whether the newest data of a key replace the previous ones."""
        return self.layout == "key"

    map_size: Annotated[Size, Field(ge=64 * 1024)] = 1024**3
    """Initial address space. Doubled whenever it is full."""

    mode: FileMode = "0600"
    """Rights of the files it makes, whatever the umask is. Readers must be able to write the
    lock file, so those of the group need ``0660``."""
