"""Settings of the LMDB writer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from adaptors.rights import FileMode
from transporter.adaptor import AdaptorConfig, LocalPath, Size


class LmdbWriterConfig(AdaptorConfig):
    """Where the database is, and what is kept in it."""

    path: LocalPath
    """Folder of the database; made when it is not there."""

    layout: Literal["key", "offset"] = "key"
    """``key``: the newest data of each key. ``offset``: every entry, under its offset."""

    @property
    def upserts(self) -> bool:
        """Whether the newest data of a key takes the place of what was there."""
        return self.layout == "key"

    map_size: Annotated[Size, Field(ge=64 * 1024)] = 1024**3
    """Address space to begin with; doubled whenever it is full."""

    mode: FileMode = "0600"
    """Rights of the files it makes, whatever the umask is; readers must be able to write the
    lock file, so those of the group need ``0660``."""
