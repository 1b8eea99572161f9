"""Tests of the user's modules, packed for a worker on another host."""

from __future__ import annotations

import io
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from transporter.errors import HostFailed
from transporter.pipeline.steps.step import StepConfig
from transporter.worker import user_modules
from transporter.worker.user_modules import make_portable, pack_modules, unpack_modules

if TYPE_CHECKING:
    from pathlib import Path


def names(modules: bytes) -> set[str]:
    """Return the names in a zip file."""
    with zipfile.ZipFile(io.BytesIO(modules)) as archive:
        return set(archive.namelist())


def test_modules_and_packages_are_packed_and_nothing_else(tmp_path: Path) -> None:
    """Importable files are packed, with a package's data but without secrets."""
    for name in ("one.py", "pack/__init__.py", "pack/deep/two.py", "pack/data.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    for name in ("p.yaml", ".env", "log/meta", "pack/__pycache__/x.pyc", "transporter.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "transporter_adaptors").mkdir()
    (tmp_path / "transporter_adaptors" / "__init__.py").write_text("")
    expected = {"one.py", "pack/__init__.py", "pack/deep/two.py", "pack/data.json"}
    assert names(pack_modules(tmp_path)) == expected


def test_an_empty_folder_makes_an_empty_kit(tmp_path: Path) -> None:
    """A pipeline without its own modules gets an empty folder."""
    with unpack_modules(pack_modules(tmp_path)) as folder:
        assert list(folder.iterdir()) == []


def test_unpacked_modules_can_be_imported_and_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that serves a second worker imports that worker's modules again."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for version in ("1", "2"):
        (tmp_path / "versioned_module.py").write_text(f"VERSION = {version}")
        with unpack_modules(pack_modules(tmp_path)) as folder:
            sys.path.append(str(folder))
            import versioned_module  # type: ignore[import-not-found]  # noqa: PLC0415

            assert int(version) == versioned_module.VERSION
        assert not folder.exists()
        assert str(folder) not in sys.path
        assert "versioned_module" not in sys.modules


def test_a_folder_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder above the size limit is refused, so no home directory is sent by accident."""
    monkeypatch.setattr(user_modules, "MOST", 10)
    (tmp_path / "one.py").write_text("x = 123456")
    pack_modules(tmp_path)
    (tmp_path / "two.py").write_text("x")
    with pytest.raises(HostFailed, match="a folder of their own"):
        pack_modules(tmp_path)


def test_a_script_travels_as_text(tmp_path: Path) -> None:
    """A step that names a file gets the file's content, and other steps are unchanged."""
    (tmp_path / "a.star").write_text("def transform(m): return m\n")
    scripted = StepConfig(name="starlark", settings={"file": "a.star", "namespace": "^a"})
    other = StepConfig(name="omit", settings={"fields": ["file"]})
    found = make_portable((scripted, other), tmp_path)
    code = "def transform(m): return m\n"
    assert found[0].settings == {"namespace": "^a", "code": code}
    assert found[1] is other


def test_a_script_that_is_gone_is_named(tmp_path: Path) -> None:
    """The failure names the file that cannot be sent."""
    with pytest.raises(HostFailed, match=r"gone\.star: cannot be read for workers"):
        make_portable((StepConfig(name="starlark", settings={"file": "gone.star"}),), tmp_path)
