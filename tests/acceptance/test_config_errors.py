"""The real command against wrong pipeline files: the mistake, its place, and no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import transporter

ROOT = Path(transporter.__file__).parents[1]
ADAPTORS = '''\
from transporter.adaptor import AdaptorConfig, Writer


class Source:
    """Reads nothing."""

    class Config(AdaptorConfig):
        count: int = 1
        password: str = ""

    def __init__(self, config): ...
    def open(self, resume): ...
    def poll(self, timeout): ...
    def commit(self, position): ...
    def close(self): ...


class Sink:
    """Writes nothing."""

    class Config(AdaptorConfig):
        path: str

    def __init__(self, config): ...
    def open(self, context): ...
    def write(self, batch, ack): ...
    def close(self): ...
'''
PIPELINE = """\
readers:
  - name: in
    adaptor: my_parts:Source
    password: ${PASSWORD}
routes:
  - name: out
    namespace: ^orders
    writer: {adaptor: "my_parts:Sink", path: out}
"""


def transport(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command in *folder*, as a user does."""
    environ = {key: value for key, value in os.environ.items() if key != "PASSWORD"}
    return subprocess.run(
        [sys.executable, "-m", "transporter.cli.app", *arguments],
        cwd=folder,
        env=environ | {"PYTHONPATH": str(ROOT), "PASSWORD": "hunter22"} | variables,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a folder with a valid pipeline and its adaptors."""
    (tmp_path / "my_parts.py").write_text(ADAPTORS)
    (tmp_path / "orders.yaml").write_text(PIPELINE)
    return tmp_path


def test_a_valid_pipeline(folder: Path) -> None:
    """A valid file is exit code 0, with a summary that contains no setting."""
    done = transport(folder, "check", "orders.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0][:5] == ["orders:", "the", "file", "is", "valid:"]
    assert ["reader", "in", "my_parts:Source"] in lines
    assert ["route", "out", "^orders", "->", "my_parts:Sink"] in lines
    assert "hunter22" not in done.stdout


def test_a_valid_pipeline_as_json(folder: Path) -> None:
    """With --json stdout is one object."""
    done = transport(folder, "check", "orders.yaml", "--json")
    result = json.loads(done.stdout)["result"]
    assert (done.returncode, result["name"]) == (0, "orders")
    assert result["log"]["dir"] == str(folder / "data/orders")
    assert "hunter22" not in done.stdout


WRONG = [
    # (the text to replace, its replacement, the line, words of the error)
    ("namespace:", "namespce:", 7, "unknown key 'namespce' in routes[0]; did you mean 'namespace'"),
    ("${PASSWORD}", "${PASSWORD}\n    count: many", 5, "readers[0].count must be a valid integer"),
    ("${PASSWORD}", "${PASWORD:?set it, please}", 4, "variable PASWORD is not set: set it, please"),
    ("^orders", "^orders(", 7, "routes[0].namespace is not a regular expression"),
    ("my_parts:Source", "postgers", 3, "there is no reader 'postgers'"),
    ("my_parts:Source", "my_prats:Source", 3, "did you mean 'my_parts'?"),
    ("name: out", "name: out\n    name: more", 7, "duplicate key 'name' (first on line 6)"),
    (", path: out", "", 8, "routes[0].writer.path is missing"),
    ("    password", "   password", 4, "is not YAML"),
]


@pytest.mark.parametrize(("old", "new", "line", "words"), WRONG)
def test_a_wrong_file_is_told_with_file_and_line(
    folder: Path, old: str, new: str, line: int, words: str
) -> None:
    """Each mistake is exit code 2 and one line on stderr that begins with file and line."""
    (folder / "orders.yaml").write_text(PIPELINE.replace(old, new, 1))
    done = transport(folder, "check", "orders.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"orders.yaml:{line}: ")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "hunter22" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_all_mistakes_at_once_as_json(folder: Path) -> None:
    """With --json all problems are in one object on stdout, and stderr is empty."""
    text = PIPELINE.replace("name: in", "name: in in").replace("path: out", "pth: out")
    (folder / "orders.yaml").write_text(text)
    done = transport(folder, "check", "orders.yaml", "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, done.stderr, error["exit_code"]) == (2, "", 2)
    assert [each["line"] for each in error["problems"]] == [2, 8, 8]


def test_a_broken_module_is_told_without_a_traceback(folder: Path) -> None:
    """A mistake in the user's own module is reported with its file and line."""
    (folder / "my_parts.py").write_text("import json\n\nclass Source\n")
    done = transport(folder, "check", "orders.yaml")
    assert done.returncode == 2
    assert "my_parts.py:3: SyntaxError" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_file(folder: Path) -> None:
    """A missing file is a configuration error."""
    done = transport(folder, "check", "none.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "none.yaml: cannot be read: No such file or directory\n"


HEAVY = ["pyspark", "py4j", "pyarrow", "rich", "structlog", "ruamel"]


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], ["pydantic", *HEAVY]),
        (["check", "--help"], HEAVY),  # Typer itself imports pydantic for a command's options
        (["adaptors", "--help"], HEAVY),
        (["--version"], HEAVY),
    ],
)
def test_help_imports_nothing_heavy(folder: Path, arguments: list[str], heavy: list[str]) -> None:
    """Help starts at once, because it imports no Spark, Arrow, YAML or drawing library."""
    code = (
        "import sys\n"
        "from transporter.cli.app import execute\n"
        f"code = execute({arguments!r})\n"
        f"sys.exit(code or ', '.join(set({heavy!r}) & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_check_imports_no_spark(folder: Path) -> None:
    """Checking a file starts and imports no Spark."""
    code = (
        "import sys\n"
        "from transporter.cli.app import execute\n"
        "code = execute(['check', 'orders.yaml'])\n"
        "sys.exit(code or ', '.join({'pyspark', 'py4j'} & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PASSWORD": "x"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_goes_away_is_no_error_to_read_about(folder: Path) -> None:
    """An early close of stdout causes no traceback."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "transporter.cli.app", "--help"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=180,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
