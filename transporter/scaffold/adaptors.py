"""Scaffold of an adaptor package: a working writer, reader or both, with their tests."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from importlib.util import find_spec
from string import Template
from typing import TYPE_CHECKING, Final

from transporter.errors import ConfigError
from transporter.pipeline.adaptor_registry import OUR_PACKAGES, READER, WRITER

if TYPE_CHECKING:
    from pathlib import Path

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_SYSTEMS: Final = {READER: "source", WRITER: "sink"}


@dataclass(frozen=True, slots=True)
class _Part:
    """A reader or a writer of the package."""

    kind: str
    module: str
    class_name: str

    @property
    def reference(self) -> str:
        return f"{self.module}:{self.class_name}"

    def files(self, name: str) -> dict[str, str]:
        words = {"name": name, "module": self.module, "class": self.class_name}
        made = {
            f"{self.module}.py": _fill_template(f"{self.kind}.py", words),
            f"test_{self.module}.py": _fill_template(f"{self.kind}_test.py", words),
        }
        return made | ({"fill.py": _fill_template("fill.py", words)} if self.kind == READER else {})

    def readme_lines(self) -> str:
        """Return the description of the files for the package's README."""
        system = _SYSTEMS[self.kind]
        run = "`pytest` (`pip install pytest`) runs it"
        lines = [
            f"- `{self.module}.py`: the {self.kind}. Put your {system} in the place of SQLite.",
            f"- `test_{self.module}.py`: the contract of every {self.kind}, on a database; {run}.",
        ]
        if self.kind == READER:
            lines.append(f"- `fill.py`: creates `{self.module}.db`, for the reader to read.")
        return "\n".join(lines)

    def pipeline_settings(self) -> str:
        """Return the settings of a pipeline file that use this part."""
        return f'adaptor: "{self.reference}", path: {self.module}.db'


def _nearest_name(name: str) -> str:
    """Return a name that an adaptor may have, made of *name* where that can be."""
    near = "-".join(re.findall("[a-z0-9]+", name.lower()))
    fits = _NAME.fullmatch(near) and near not in OUR_PACKAGES and not keyword.iskeyword(near)
    return near if fits else "my-sink"


def adaptor_package(name: str, kinds: tuple[str, ...] = (WRITER,)) -> dict[str, str]:
    """Return the files of a package for the adaptor *name*, as contents by file name.

    Args:
        name: Name of the adaptor.
        kinds: Contents of the package: ``reader``, ``writer`` or both.

    Raises:
        ConfigError: If *name* is not valid, or an installed module or package has it.
    """
    parts = {kind: _make_part(name, kind, alone=len(kinds) == 1) for kind in kinds}
    module = name.replace("-", "_")
    if not _NAME.fullmatch(name) or keyword.iskeyword(module) or module in OUR_PACKAGES:
        raise ConfigError(
            f"{name!r} cannot name an adaptor: use lower-case letters, digits and single hyphens, "
            f"such as {_nearest_name(name)}"
        )
    _refuse_taken(name, [module, *(part.module for part in parts.values())], kinds[-1])
    made: dict[str, str] = {}
    for part in parts.values():
        made |= part.files(name)
    words = _template_words(name, parts)
    return made | {
        file: _fill_template(file, words)
        for file in ("README.md", "pipeline.yaml", "pyproject.toml")
    }


def next_steps(name: str, kinds: tuple[str, ...]) -> str:
    """Return the commands that try the new package."""
    install = "" if find_spec("pytest") else "pip install pytest && "
    fill = "python fill.py && " if READER in kinds else ""
    return f"cd {name} && {install}pytest && {fill}transporter run pipeline.yaml"


def write_all(folder: Path, contents: dict[str, str]) -> None:
    """Create *folder* with *contents*, or raise :class:`ConfigError` if it is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists already; choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_text(content)


def _make_part(name: str, kind: str, *, alone: bool) -> _Part:
    module = name.replace("-", "_") + ("" if alone else f"_{kind}")
    return _Part(kind, module, f"{_camel_case(name)}{kind.capitalize()}")


def _refuse_taken(name: str, modules: list[str], kind: str) -> None:
    """Refuse a name that is taken, because one of the two would hide the other.

    A single word is refused too. It is typically the name of a system's own client, which may be
    installed later.
    """
    taken = [module for module in modules if _is_importable(module)]
    if taken:
        why = f"there is a module {taken[0]!r} already, and your own would hide it"
    elif _is_distribution(name):
        why = f"there is a package {name!r} already, and your own would take its place"
    elif "-" not in name:
        why = f"a client library may be called {name!r}, and your own module would hide it"
    else:
        return
    system = _SYSTEMS[kind]
    other = f"my-{name}" if name.endswith(system) else f"{name}-{system}"
    raise ConfigError(f"{why}; name the adaptor {other}")


def _is_importable(module: str) -> bool:
    try:
        spec = find_spec(module)
    except ValueError:  # Loaded without a known origin.
        return True
    # A plain folder is importable, too, but hides no module.
    return spec is not None and spec.origin is not None


def _is_distribution(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _template_words(name: str, parts: dict[str, _Part]) -> dict[str, str]:
    reader, writer = parts.get(READER), parts.get(WRITER)
    return {
        "name": name,
        "what": " and ".join(f"a {kind}" for kind in parts),
        "contents": "\n".join(part.readme_lines() for part in parts.values()),
        "references": ", ".join(f'`adaptor: "{part.reference}"`' for part in parts.values()),
        "before": "python fill.py && " if reader else "",
        "reader": f"{{name: {name}, {reader.pipeline_settings()}}}"
        if reader
        else "{name: demo, adaptor: demo, count: 100}",
        "writer": f"{{{writer.pipeline_settings()}}}" if writer else '{adaptor: file, path: "-"}',
        "entry_points": "\n\n".join(
            f'[project.entry-points."transporter.{kind}s"]\n{name} = "{part.reference}"'
            for kind, part in parts.items()
        ),
        "modules": ", ".join(f'"{part.module}.py"' for part in parts.values()),
    }


def _fill_template(file: str, words: dict[str, str]) -> str:
    template = files(__package__) / "adaptor" / f"{file}.txt"
    return Template(template.read_text()).substitute(words)


def _camel_case(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("-"))
