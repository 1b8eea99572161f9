"""The user's own modules, sent to a worker that does not see the pipeline file's folder."""

from __future__ import annotations

import io
import sys
import tempfile
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from transporter.errors import HostFailed
from transporter.pipeline.adaptor_registry import OUR_PACKAGES, forget_modules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.pipeline.steps.step import StepConfig

MOST: Final = 64 << 20
"""Bytes that the modules beside a pipeline file may take in all."""
_SCRIPTED: Final = "starlark"
"""The step whose settings may name a file, which workers elsewhere do not have."""
_NEVER: Final = "__pycache__"


def pack_modules(folder: Path) -> bytes:
    """Return the modules beside the pipeline file in *folder*, as a zip file.

    These are every ``*.py`` there, and every file of each package there (a folder with an
    ``__init__.py``): everything importable from that folder, and nothing else.

    Raises:
        HostFailed: they cannot be read, or take more than :data:`MOST`.

    """
    written = io.BytesIO()
    left = MOST
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for path in _modules(folder):
            try:
                data = path.read_bytes() if path.stat().st_size <= left else None
            except OSError as error:
                problem = f"{path}: cannot be read for workers: {error.strerror}"
                raise HostFailed(problem) from error
            if data is None:
                raise HostFailed(
                    f"{folder}: the modules there take more than {MOST >> 20} MiB, the limit for "
                    "modules sent to workers; move the pipeline file and its modules to a folder "
                    "of their own"
                )
            left -= len(data)
            archive.writestr(str(path.relative_to(folder)), data)
    return written.getvalue()


def _modules(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.glob("*.py") if path.stem not in OUR_PACKAGES)
    for package in sorted(folder.glob("*/__init__.py")):
        if package.parent.name not in OUR_PACKAGES:
            files = sorted(package.parent.rglob("*"))
            yield from (path for path in files if path.is_file() and _NEVER not in path.parts)


def make_portable(steps: tuple[StepConfig, ...], folder: Path) -> tuple[StepConfig, ...]:
    """Return *steps* so that they need no file of the pipeline file's *folder* but modules.

    Raises:
        HostFailed: a script cannot be read any more.

    """
    return tuple(_make_portable(step, folder) for step in steps)


def _make_portable(step: StepConfig, folder: Path) -> StepConfig:
    settings = step.settings
    if step.name != _SCRIPTED or not isinstance(settings, dict) or not settings.get("file"):
        return step
    path = folder / settings["file"]
    try:
        code = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HostFailed(f"{path}: cannot be read for workers: {error}") from error
    rest = {name: value for name, value in settings.items() if name != "file"}
    return step.model_copy(update={"settings": {**rest, "code": code}})


@contextmanager
def unpack_modules(modules: bytes) -> Iterator[Path]:
    """Give *modules*, as :func:`pack_modules` has made them, a folder for the length of a block."""
    with tempfile.TemporaryDirectory(prefix="transporter-") as name:
        folder = Path(name).resolve()
        with zipfile.ZipFile(io.BytesIO(modules)) as archive:
            archive.extractall(folder)
        try:
            yield folder
        finally:
            # Spark may use this process again, for a worker with other modules.
            forget_modules(folder)
            sys.path[:] = [each for each in sys.path if each != str(folder)]


@contextmanager
def provide_modules(folder: Path, modules: bytes | None) -> Iterator[Path]:
    """Give the folder of the user's modules for the length of a block: *folder*, or *modules*."""
    if modules is not None:
        with unpack_modules(modules) as place:
            yield place
        return
    # This process may have served before, with older contents of the user's files.
    forget_modules(folder)
    yield folder
