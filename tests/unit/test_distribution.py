"""The foreign distribution ``transporter``, which starts refuse."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from transporter import __version__, distribution
from transporter.cli.app import execute
from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SKIPPED = {"build", "dist", "data", "__pycache__", "transporter-quickstart"}
VISIBLE = {".github", ".ci"}
TEXTS = {".py", ".md", ".txt", ".toml", ".yaml", ".yml", ".json", ".sh", ".cfg", ""}
STRANGER = re.compile(
    r"""(?:(?:pip3?|pipx|tool)\s+(?:install|inject)|uv\s+add)(?:\s+-\S+)*[\s"']+transporter(?![\w-])"""
    r"""|['"]transporter\[|dependencies\s*=\s*\[\s*['"]transporter['"\[ <>=~]"""
)


def texts() -> Iterator[Path]:
    """Yield the texts of the repository."""
    for folder, folders, files in os.walk(ROOT):
        hidden = [each for each in folders if each.startswith(".") and each not in VISIBLE]
        folders[:] = sorted({*folders} - SKIPPED - {*hidden})
        yield from (path for each in files if (path := Path(folder, each)).suffix in TEXTS)


def plant(folder: Path, name: str, **files: str) -> None:
    """Install a distribution *name* of version 0.2 into *folder*, as its metadata alone."""
    info = folder / f"{name.replace('-', '_')}-0.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.2\n")
    for file, text in files.items():
        (info / file.replace("__", ".")).write_text(text)


def test_an_environment_without_it_is_fine() -> None:
    """Nothing is refused where only this distribution is installed."""
    distribution.refuse_other_distribution()


@pytest.mark.parametrize("command", [["run", "absent.yaml"], ["quickstart"], ["check", "absent"]])
def test_a_start_names_the_commands_to_run(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A start beside the foreign distribution ends with 3, the commands, and nothing written."""
    (site := tmp_path / "site").mkdir()
    plant(site, "transporter")
    monkeypatch.syspath_prepend(str(site))
    (work := tmp_path / "work").mkdir()
    monkeypatch.chdir(work)
    assert execute(command) == 3
    said = capsys.readouterr().err
    assert f"the distribution 'transporter' 0.2 is installed in {site}" in said
    assert "-m pip uninstall --yes transporter && " in said
    assert "-m pip install --force-reinstall --no-deps " in said
    assert list(work.iterdir()) == []


@pytest.mark.parametrize(
    ("plants", "text"),
    [
        (("transporter",), "the distribution 'transporter' 0.2 is installed in"),
        ((), "the installation is not complete: cannot import name '__version__'"),
    ],
)
def test_overwritten_files_are_no_traceback(
    plants: tuple[str, ...], text: str, tmp_path: Path
) -> None:
    """A package whose files a foreign distribution has replaced ends with 3 and the commands.

    This is the state that ``pip install transporter`` leaves: an empty ``__init__.py``.
    """
    shutil.copytree(ROOT / "transporter", tmp_path / "transporter")
    (tmp_path / "transporter" / "__init__.py").write_text("")
    for each in plants:
        plant(tmp_path, each)
    program = "import sys; from transporter.cli.app import main; sys.argv[1:] = ['run']; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr.startswith(f"error: {text}")
    assert "-m pip install --force-reinstall" in done.stderr


@pytest.mark.parametrize(
    ("origin", "argument"),
    [
        (None, "transporter-engine"),
        ("no JSON", "transporter-engine"),
        ({"url": "file:///x/our.whl", "archive_info": {}}, "/x/our.whl"),
        ({"url": "file:///a checkout", "dir_info": {"editable": True}}, "-e '/a checkout'"),
    ],
)
def test_this_distribution_is_installed_again_from_where_it_came(
    origin: Any, argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command installs from the index, from the file or in place, as it was done before."""
    plant(tmp_path, "transporter")
    text = origin if isinstance(origin, str) else json.dumps(origin)
    plant(tmp_path, "transporter-engine", **({} if origin is None else {"direct_url__json": text}))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(EnvironmentFault, match=f"--no-deps {re.escape(argument)}$"):
        distribution.refuse_other_distribution()


def test_an_environment_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands are those of uv, which makes environments without pip."""
    plant(tmp_path, "transporter")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(distribution, "find_spec", lambda _: None)
    with pytest.raises(EnvironmentFault) as raised:
        distribution.refuse_other_distribution()
    python = f"--python {sys.executable}"
    assert f"run: uv pip uninstall {python} transporter && uv pip install {python}" in str(
        raised.value
    )


def test_a_start_hardly_notices_it() -> None:
    """The check lists each folder of the import path once at most, and opens no file in one."""
    code = (
        "import sys, transporter.distribution as checked\n"
        "events = []\n"
        "sys.addaudithook(lambda name, of: events.append((name, str(of[0]))) if events else None)\n"
        "events.append(('begin', ''))\n"
        "checked.refuse_other_distribution()\n"
        "done = events[1:]; events.clear()\n"
        "print(*(f'{name} {of}' for name, of in done), sep='\\n')\n"
        "print(*('path ' + (each or '.') for each in sys.path), sep='\\n')\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    listed, opened, searched = (
        [line.partition(" ")[2] for line in printed if line.startswith(event)]
        for event in ("os.listdir ", "open ", "path ")
    )
    assert listed
    assert len(listed) == len({*listed})
    assert {*listed, *opened} <= {*searched}


def test_no_text_names_the_foreign_distribution() -> None:
    """No text, hint, template or generated project installs ``transporter`` from the index."""
    found = [
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file in texts()
        if file != Path(__file__)
        for match in STRANGER.finditer(file.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "pip install transporter",
        "pip install -U 'transporter[java]'",
        'run pip install " "transporter and',
        "uv add transporter\n",
        'dependencies = ["transporter"]',
    ],
)
def test_the_search_finds_a_planted_text(text: str) -> None:
    """The pattern of the search finds each way to write it, and not the right name."""
    assert STRANGER.search(f"  {text}")
    assert not STRANGER.search(text.replace("transporter", "transporter-engine"))


def test_the_version_is_that_of_the_changelog() -> None:
    """The newest version of the changelog is the one that is installed, below `Unreleased`."""
    heads = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == "Unreleased"
    assert heads[1] == __version__ == metadata("transporter-engine")["Version"]


def test_the_page_of_the_index() -> None:
    """The README has a type, links that lead somewhere from the index, and no diagram there."""
    found = metadata("transporter-engine")
    text = str(found.json["description"])
    assert found["Description-Content-Type"] == "text/markdown"
    assert re.findall(r"\]\((?!https://|#)[^)]*\)", text) == []
    assert f"/blob/v{__version__}/docs/operating.md)" in text
    assert "```mermaid" not in text
    assert "```sh\nmake demo\n```" in text
