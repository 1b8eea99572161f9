"""Adaptors by name: installed ones, and those beside the pipeline file."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import transporter
from transporter.errors import ConfigError
from transporter.pipeline.adaptor_registry import find_reader, find_writer, forget_modules

MODULE = """\
from transporter.adaptor import AdaptorConfig
class Sink:
    class Config(AdaptorConfig): ...
    def __init__(self, config): ...
    def open(self, context): ...
    def write(self, batch, ack): ...
    def close(self): ...
class Mute:
    class Config(AdaptorConfig): ...
    def open(self, context): ...
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *entry_points: str) -> None:
    """Install a distribution that registers *entry_points*, as Python sees it."""
    info = folder / "site" / "thing-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(entry_points))
    monkeypatch.syspath_prepend(info.parent)


def test_a_class_beside_the_pipeline_file(folder: Path) -> None:
    """``module:Class`` is imported from the folder, which goes to the end of the path."""
    (folder / "beside_sink.py").write_text(MODULE)
    found = find_writer("beside_sink:Sink", folder)
    assert found.__module__ == "beside_sink"
    assert sys.path[-1] == str(folder)
    assert find_writer("beside_sink:Sink", folder) is found
    assert sys.path.count(str(folder)) == 1


def test_a_class_in_a_package_beside_the_pipeline_file(folder: Path) -> None:
    """A module may sit in a package."""
    (folder / "beside_pkg").mkdir()
    (folder / "beside_pkg" / "__init__.py").touch()
    (folder / "beside_pkg" / "sinks.py").write_text(MODULE)
    assert find_writer("beside_pkg.sinks:Sink", folder).__name__ == "Sink"


def test_an_installed_adaptor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point gives a short name."""
    install(folder, monkeypatch, "[transporter.writers]", "thing = thing_sinks:Sink")
    (folder / "site" / "thing_sinks.py").write_text(MODULE)
    assert find_writer("thing", folder).__module__ == "thing_sinks"


@pytest.mark.parametrize(
    ("find", "name", "problem"),
    [
        (find_writer, "thng", r"there is no writer 'thng'; did you mean 'thing'\? \(writers: "),
        (find_reader, "thing", r"there is no reader 'thing'; 'thing' is a writer"),
        (find_writer, "twice", r"'twice' names several writers: a:A, b:B"),
        (find_writer, "lost", r"there is no module 'lost_module'"),
        (find_writer, "nothing", r"has no 'Nothing'"),
        (find_writer, "", r"there is no writer ''"),
    ],
)
def test_installed_adaptors_that_cannot_be_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, find: object, name: str, problem: str
) -> None:
    """The error for a wrong name has the nearest right one, or the problem."""
    names = ("thing = thing_sinks:Sink", "lost = lost_module:X", "nothing = thing_sinks:Nothing")
    install(folder, monkeypatch, "[transporter.writers]", *names, "twice = a:A", "twice = b:B")
    (folder / "site" / "thing_sinks.py").write_text(MODULE)
    with pytest.raises(ConfigError, match=problem):
        find(name, folder)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("code", "place", "problem"),
    [
        ("import os\nimport no_such_library\n", ":2: ", "ModuleNotFoundError: No module named"),
        ("def f(:\n", ":1: ", "SyntaxError: invalid syntax"),
        ("def f():\n    return 1 / 0\n\nf()\n", ":2: ", "ZeroDivisionError: division by zero"),
        ("import json\n\njson.loads('{')\n", ":3: ", "JSONDecodeError"),
        ("raise SystemExit('bye')\n", ":1: ", "SystemExit: bye"),
        ("from transporter.adaptor import Nope\n", ":1: ", "ImportError: cannot import name"),
    ],
)
def test_a_module_that_fails_is_named_with_its_line(
    folder: Path, code: str, place: str, problem: str
) -> None:
    """A module that cannot be imported is reported by file and line, in one line."""
    (folder / "broken_sink.py").write_text(code)
    with pytest.raises(ConfigError, match=problem) as caught:
        find_writer("broken_sink:Sink", folder)
    assert f"broken_sink.py{place}" in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("beside_snk:Sink", r"no module 'beside_snk' in .*; did you mean 'beside_sink'\?"),
        ("beside_sink:Snik", r"has no 'Snik'; did you mean 'Sink'\? \(names: Mute, Sink\)"),
        ("beside_sink:Mute", r"is not a writer: it lacks write\(\), close\(\)$"),
        ("beside_sink:AdaptorConfig", r"it lacks open\(\), write\(\), close\(\), Config \(a sub"),
        ("beside_sink:", "does not name a class"),
        (":Sink", "does not name a class"),
        ("../x:Sink", "does not name a class"),
        ("json:JSONDecoder", "is not a writer: it lacks"),
    ],
)
def test_local_adaptors_that_cannot_be_used(folder: Path, reference: str, problem: str) -> None:
    """An unusable adaptor is reported with its missing parts, or the nearest name."""
    (folder / "beside_sink.py").write_text(MODULE)
    with pytest.raises(ConfigError, match=problem):
        find_writer(reference, folder)


@pytest.mark.parametrize("name", ["transporter_adaptors", "transporter"])
@pytest.mark.parametrize("kind", ["module", "folder"])
def test_our_own_names_are_refused(folder: Path, name: str, kind: str) -> None:
    """A local file with the name of one of our packages is refused before anything is imported."""
    (folder / "beside_sink.py").write_text(MODULE)
    if kind == "module":
        (folder / f"{name}.py").touch()
    else:
        (folder / name).mkdir()
    with pytest.raises(ConfigError, match="name of one of our own packages"):
        find_writer("beside_sink:Sink", folder)


def test_the_checkout_itself_is_no_stranger(folder: Path) -> None:
    """A pipeline file may lie beside our own packages."""
    home = Path(transporter.__file__).parent
    (folder / "transporter").symlink_to(home)
    (folder / "beside_sink.py").write_text(MODULE)
    assert find_writer("beside_sink:Sink", folder).__name__ == "Sink"


def test_a_hidden_module_is_refused(folder: Path) -> None:
    """A module named like an installed one would never be used, so it is refused."""
    (folder / "json.py").write_text(MODULE)
    with pytest.raises(ConfigError, match=r"json is hidden by .*; give the module another name"):
        find_writer("json:Sink", folder)


def test_a_folder_behind_a_symbolic_link(folder: Path) -> None:
    """A module loaded through another name of the same folder is not hidden."""
    real, link = folder / "real", folder / "link"
    real.mkdir()
    (real / "linked_sink.py").write_text(MODULE)
    link.symlink_to(real)
    sys.path.append(str(real))
    assert find_writer("linked_sink:Sink", link).__name__ == "Sink"
    shutil.rmtree(real)


def test_an_adaptor_that_is_installed_meanwhile_is_found_by_a_reload(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed adaptors are looked up once, and again after a reload of the file's modules."""
    (folder / "late_sink.py").write_text(MODULE)
    (folder / "site").mkdir()
    monkeypatch.syspath_prepend(folder / "site")
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(ConfigError, match="there is no writer 'late'"):
        find_writer("late", folder)
    install(folder / "elsewhere", monkeypatch, "[transporter.writers]", "late = late_sink:Sink")
    (folder / "elsewhere" / "site" / "thing-1.0.dist-info").rename(
        folder / "site" / "late.dist-info"
    )
    sys.path.remove(str(folder / "elsewhere" / "site"))
    forget_modules(folder)
    assert find_writer("late", folder).__module__ == "late_sink"
