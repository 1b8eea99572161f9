"""Certificates for TLS: the trusted ones, and the client's own."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from transporter.errors import RouteFault, SinkUnavailable

if TYPE_CHECKING:
    from pathlib import Path

    from transporter_adaptors.http.config import HttpWriterConfig

_FileStates = tuple[tuple[int, ...] | None, ...]


class Tls:
    """The TLS contexts of a writer. Files that were replaced are read again.

    Not thread-safe.
    """

    def __init__(self, config: HttpWriterConfig) -> None:
        """Read nothing yet."""
        self._config = config
        self._context: ssl.SSLContext | None = None
        self._loaded_states: _FileStates = ()

    def context(self) -> ssl.SSLContext:
        """Return the context of the next connection.

        Raises:
            RouteFault: A file cannot be used.
            SinkUnavailable: A file that could be used before cannot be used now, because it may
                be about to be replaced.
        """
        seen = self._file_states()
        if self._context is None or seen != self._loaded_states:
            self._context, self._loaded_states = self._make_context(), seen
        return self._context

    def _file_states(self) -> _FileStates:
        config = self._config
        return tuple(map(_file_state, (config.ca_file, config.cert_file, config.key_file)))

    def _make_context(self) -> ssl.SSLContext:
        ca_file, cert_file = self._config.ca_file, self._config.cert_file
        try:
            context = ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            text = f"{ca_file}: {_reason(error)}: ca_file must be a readable file of PEM"
            raise self._unusable_error(f"{text} certificates") from None
        if cert_file is not None:
            try:
                self._load(context)
            except (OSError, ValueError) as error:
                text = f"{cert_file}, {self._config.key_file}: {_reason(error)}: cert_file and"
                raise self._unusable_error(
                    f"{text} key_file must be readable PEM files of a certificate and its key, "
                    "and key_password the key's, if it has one"
                ) from None
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        config = self._config
        assert config.cert_file is not None  # noqa: S101 - the caller has checked it
        password = config.key_password.get_secret_value() if config.key_password else ""
        # Without a password the library would prompt for one at the terminal.
        context.load_cert_chain(config.cert_file, config.key_file, password)

    def _unusable_error(self, text: str) -> RouteFault | SinkUnavailable:
        return RouteFault(text) if self._context is None else SinkUnavailable(text)


def _file_state(path: Path | None) -> tuple[int, ...] | None:
    """Return values that change with the file's content, or ``None`` without a file."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _reason(error: Exception) -> object:
    return getattr(error, "strerror", None) or error
