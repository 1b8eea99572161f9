"""The output of ``transporter adaptors``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from transporter.cli import app
from transporter.cli.adaptors import example_lines
from transporter.pipeline.adaptor_description import AdaptorInfo, Setting

if TYPE_CHECKING:
    from pathlib import Path

MODULE = '''\
from pydantic import Field
from transporter.adaptor import AdaptorConfig
class Sink:
    """Writes to a thing.

    Slowly.
    """
    class Config(AdaptorConfig):
        path: str = Field(description="Where to.")
        size: int = 5
    def open(self, context): ...
    def write(self, batch, ack): ...
    def close(self): ...
'''


@pytest.fixture(autouse=True)
def thing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a writer ``zz-thing`` and one ``zz-lost`` that cannot be imported."""
    info = tmp_path / "thing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[transporter.writers]\nzz-thing = zz_thing_sink:Sink\nzz-lost = zz_lost:Sink\n"
    )
    (tmp_path / "zz_thing_sink.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    """Each adaptor has one line, and that of a broken one shows its error."""
    assert app.execute(["adaptors", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    words = [line.split(maxsplit=2) for line in lines]
    assert ["zz-thing", "writer", "Writes to a thing."] in words
    assert ["zz-lost", "writer", "there is no module 'zz_lost'"] in words


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json every setting is there, too."""
    assert app.execute(["adaptors", "list", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    (found,) = [each for each in result if each["name"] == "zz-thing"]
    assert found["reference"] == "zz_thing_sink:Sink"
    assert [each["name"] for each in found["settings"]] == ["path", "size"]


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    """An adaptor is shown with its text, its settings and an example."""
    assert app.execute(["adaptors", "show", "zz-thing"]) == 0
    shown = capsys.readouterr().out
    assert "Writes to a thing.\n\nSlowly.\n" in shown
    assert "path     text          (required)  Where to.\n" in shown
    assert "size     whole number  5\n" in shown
    assert "      adaptor: zz-thing\n" in shown


def test_show_one_that_cannot_be_imported(capsys: pytest.CaptureFixture[str]) -> None:
    """A broken adaptor is shown with its error."""
    assert app.execute(["adaptors", "show", "zz-lost"]) == 0
    assert "It cannot be used: there is no module 'zz_lost'" in capsys.readouterr().out


def test_show_an_unknown_one(capsys: pytest.CaptureFixture[str]) -> None:
    """The error about an unknown name suggests the nearest known one."""
    assert app.execute(["adaptors", "show", "zz-thnig"]) == 2
    assert "did you mean 'zz-thing'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        (
            "reader",
            [
                "readers:",
                "  - name: my-x",
                "    adaptor: x",
                "    dsn: ${{X_DSN:?{}}}",
            ],
        ),
        (
            "writer",
            [
                "routes:",
                "  - name: to-x",
                "    writer:",
                "      adaptor: x",
                "      dsn: ${{X_DSN:?{}}}",
            ],
        ),
    ],
)
@pytest.mark.parametrize(
    ("doc", "advice"),
    [
        ("", "set it to the dsn"),
        ("Brokers: `host:port`, with commas. More.", "brokers (host:port, with commas)"),
        ('Names: `a*`, `"!b"`.', "names"),
        ("URL of it; or not", "URL of it"),
        ("A `{topic}`.", "set it to the dsn"),
    ],
)
def test_example_has_what_is_required(kind: str, lines: list[str], doc: str, advice: str) -> None:
    """The example gives each required setting a variable that says what it is, and no others."""
    settings = (
        Setting("dsn", "text", required=True, default=None, doc=doc),
        Setting("size", "size", required=False, default="1", doc=""),
    )
    found = example_lines(AdaptorInfo("x", kind, "m:X", settings=settings))
    assert found == [line.format(advice) for line in lines]


def test_show_of_a_class_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A class in the current folder is shown like an installed adaptor, under its reference."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "zz_own_sink.py").write_text(MODULE)
    monkeypatch.chdir(folder)
    assert app.execute(["adaptors", "show", "zz_own_sink:Sink"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("zz_own_sink:Sink (writer)\n")
    assert '  - name: to-zz-own-sink\n    writer:\n      adaptor: "zz_own_sink:Sink"\n' in told
    assert "path: ${ZZ_OWN_SINK_PATH:?" in told
    assert app.execute(["adaptors", "show", "zz_own_sink:Source"]) == 2
    assert "has no 'Source'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("default", "code", "words"),
    [
        ("5s", 0, "size     duration  5s\n"),
        ("soon", 2, "{file}:8: ConfigError: Sink.Config.size: its default is not a duration;"),
    ],
)
def test_a_default_given_as_text_is_shown_or_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    default: str,
    code: int,
    words: str,
) -> None:
    """A default duration is shown, and a wrong one is an error with file, line, class and field."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "own"
    folder.mkdir()
    file = folder / f"zz_default_{code}.py"
    file.write_text(
        MODULE.replace("import AdaptorConfig", "import AdaptorConfig, Duration").replace(
            "size: int = 5", f'size: Duration = "{default}"'
        )
    )
    monkeypatch.chdir(folder)
    assert app.execute(["adaptors", "show", f"{file.stem}:Sink"]) == code
    assert words.format(file=file) in "".join(capsys.readouterr())


def test_a_pipeline_is_begun_with_a_class_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The class is imported from the folder of the new file, and must be of the right kind."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "zz_beside_sink.py").write_text(MODULE)
    file = folder / "p.yaml"
    assert app.execute(["init", "pipeline", "demo", "zz_beside_sink:Sink", str(file)]) == 0
    assert 'adaptor: "zz_beside_sink:Sink"' in file.read_text()
    monkeypatch.setenv("ZZ_BESIDE_SINK_PATH", "there")
    assert app.execute(["check", str(file)]) == 0
    other = str(folder / "q.yaml")
    assert app.execute(["init", "pipeline", "zz_beside_sink:Sink", "file", other]) == 2
    assert "is a writer, not a reader" in capsys.readouterr().err
