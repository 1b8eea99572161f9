"""Secrets that lie in files: ``${file:/run/secrets/db}`` in a pipeline file.

A setting keeps its template, so that it can be read again when its file has changed.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from transporter.pipeline.problems import one_line

if TYPE_CHECKING:
    from transporter.pipeline.config import Pipeline
    from transporter.pipeline.yaml_document import Document

MOST: Final = 64 * 1024
"""Bytes of a secret: a key with its chain of certificates has a tenth of that."""

KeyPath = tuple[str | int, ...]


class UnreadableSecret(ValueError):
    """A secret file that cannot be used. The text has the file's name, never its contents."""


class AbsentSecret(UnreadableSecret):
    """A secret file that is not on this host."""


@dataclass(frozen=True, slots=True)
class Template:
    """A text with secret files in it: each part is a plain text, or the file of a secret."""

    parts: tuple[str | Path, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """The secret files."""
        return tuple(each for each in self.parts if isinstance(each, Path))

    def read(self) -> tuple[str, frozenset[str]]:
        """Return the text as it is now, and the secrets in it.

        Raises:
            UnreadableSecret: one of the files cannot be used.

        """
        found = [read_secret(each) if isinstance(each, Path) else each for each in self.parts]
        secrets = (
            text for each, text in zip(self.parts, found, strict=True) if isinstance(each, Path)
        )
        return "".join(found), frozenset(secrets)


def secret_path(text: str, folder: Path) -> Path:
    """Return the path that *text* names: a relative one begins in *folder*, ``~`` is the home."""
    try:
        return folder / Path(text).expanduser()
    except RuntimeError:
        problem = _problem_text(Path(text), "is in the home of an unknown user")
        raise AbsentSecret(problem) from None


def read_secret(path: Path) -> str:
    """Return the contents of the file at *path*, without a final line end.

    Links are followed, because Kubernetes mounts secrets as such.

    Raises:
        UnreadableSecret: it is missing, not a regular file, empty, too large, not text, or
            others may write to it.

    """
    try:
        # A pipe must not hold the engine.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            mode = os.fstat(descriptor).st_mode
            content = os.read(descriptor, MOST + 1) if stat.S_ISREG(mode) else None
        finally:
            os.close(descriptor)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise AbsentSecret(_problem_text(path, f"cannot be read: {error.strerror}")) from error
    except OSError as error:
        raise _unreadable_secret(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise _unreadable_secret(path, "is not a file name") from error
    if content is None:
        raise _unreadable_secret(path, "is not a regular file")
    if mode & stat.S_IWOTH:
        raise _unreadable_secret(path, "can be written by every user of this host; chmod o-w it")
    if len(content) > MOST:
        raise _unreadable_secret(path, f"is larger than {MOST} bytes, the limit for a secret file")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise _unreadable_secret(path, "is not UTF-8 text") from error
    text = text.removesuffix("\n").removesuffix("\r")
    if not text or "\0" in text:
        raise _unreadable_secret(path, "holds a NUL" if text else "is empty")
    return text


def secret_files(pipeline: Pipeline, document: Document) -> list[Path]:
    """Return the secret files that *pipeline*, of the source *document*, names, sorted."""
    files = {file for template in document.templates.values() for file in template.files}
    if pipeline.observe.tls is not None:
        files.add(pipeline.observe.tls.key)
    return sorted(files)


def is_readable_by_all(path: Path) -> bool:
    """Return whether every user of this host may read the file at *path*."""
    try:
        mode = path.stat().st_mode
        # A folder without access for others protects its files.
        return bool(mode & stat.S_IROTH and path.resolve().parent.stat().st_mode & stat.S_IXOTH)
    except OSError:
        return False


def _unreadable_secret(path: Path, problem: str) -> UnreadableSecret:
    return UnreadableSecret(_problem_text(path, problem))


def _problem_text(path: Path, problem: str) -> str:
    return f"secret file {one_line(path)} {problem}"


@dataclass(frozen=True, slots=True)
class SecretSettings:
    """The settings of an adaptor that hold secrets from files, each with its template."""

    templates: tuple[tuple[KeyPath, Template], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.templates)

    def read(self, settings: dict[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
        """Return *settings* as their files are now, and the secrets in them.

        Raises:
            UnreadableSecret: one of the files cannot be used.

        """
        secrets: set[str] = set()
        for path, template in self.templates:
            text, found = template.read()
            settings = _replace_value(settings, path, text)
            secrets |= found
        return settings, frozenset(secrets)

    def restore_templates(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return *settings* with templates in place of secrets, as in the pipeline file."""
        for path, template in self.templates:
            settings = _replace_value(settings, path, template)
        return settings


def _replace_value(values: Any, path: KeyPath, value: object) -> Any:  # noqa: ANN401 - plain values
    """Return a copy of nested *values* with *value* at *path*."""
    step, rest = path[0], path[1:]
    copy: Any = dict(values) if isinstance(values, dict) else list(values)
    copy[step] = _replace_value(values[step], rest, value) if rest else value
    return copy
