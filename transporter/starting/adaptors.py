"""A package with an adaptor in it: a writer that works, its contract tests, a pipeline."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Final

from transporter.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_OURS: Final = ("adaptors", "transporter")
_FILES: Final = {
    "README.md": "README.md",
    "module.py": "{module}.py",
    "pipeline.yaml": "pipeline.yaml",
    "pyproject.toml": "pyproject.toml",
    "test.py": "test_{module}.py",
}


def adaptor_package(name: str) -> dict[str, str]:
    """Return the files of a package for the adaptor *name*: what each is called and holds."""
    module = name.replace("-", "_")
    if not _NAME.fullmatch(name) or keyword.iskeyword(module) or module in _OURS:
        raise ConfigError(
            f"{name!r} cannot name an adaptor: write small letters, digits and single -, "
            "such as my-sink"
        )
    words = {"name": name, "module": module, "class": f"{_camel(name)}Writer"}
    folder = files(__package__) / "adaptor"
    return {
        target.format(module=module): Template((folder / f"{source}.txt").read_text()).substitute(
            words
        )
        for source, target in _FILES.items()
    }


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("-"))


def write_all(folder: Path, contents: dict[str, str]) -> None:
    """Write *contents* into *folder*, making it; raise :class:`ConfigError` if it is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists already; choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_text(content)
