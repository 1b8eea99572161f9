"""``starlark`` in a pipeline file: problems found at load, and changes found by a reload."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from step_tools import batch_of, rows_of

from transporter.errors import ConfigError
from transporter.message import Message
from transporter.pipeline.config import load
from transporter.pipeline.problems import InvalidPipeline
from transporter.pipeline.reload_changes import changed_routes, reread
from transporter.pipeline.steps.chain import Steps, compile_steps
from transporter.pipeline.steps.step import StepConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Write = Callable[[str], Path]

GOOD = "def transform(message):\n  return {'data': 1}\n"


@pytest.fixture
def step_file(pipeline_file: Write, valid: str) -> Write:
    """Write a pipeline file whose route has one step, on line 8."""
    return lambda item: pipeline_file(f"{valid}    steps:\n      - starlark: {item}\n")


def problem(file: Path, environ: dict[str, str] | None = None) -> str:
    """Return the only problem of *file*."""
    with pytest.raises(InvalidPipeline) as caught:
        load(file, environ or {})
    (found,) = caught.value.problems
    assert found.file == str(file)
    return f"{found.line}: {found.problem}"


@pytest.mark.parametrize(
    "item",
    [
        "{file: turn.star}",
        "{file: sub/../turn.star, namespace: ^x}",
        "{code: \"def transform(m): return {'data': 1}\"}",
        "\n          code: |-\n            def transform(m):\n              return {'data': 1}",
    ],
)
def test_a_script_of_a_file_or_in_the_step(step_file: Write, folder: Path, item: str) -> None:
    """A script beside the pipeline file, or in it, travels with its settings and is called."""
    (folder / "turn.star").write_text(GOOD)
    (folder / "sub").mkdir()
    (route,) = load(step_file(item), {}).routes
    there = pickle.loads(pickle.dumps(route.steps))  # noqa: S301 - our own
    (entry,) = rows_of(compile_steps(there, folder).apply(batch_of(Message("x", b"0"))))
    assert entry.message.data == b"1"


ITEM = "routes[0].steps[0].starlark"
FILE = f"8: {ITEM}.file cannot be used: {{folder}}"
MISTAKES = [
    ("", f"8: {ITEM} must be a mapping"),
    ("{}", f"8: {ITEM} needs either file or code, and not both"),
    ("{file: good.star, code: 'def transform(m): pass'}", f"8: {ITEM} needs either file or code"),
    ("{file: 5}", f"8: {ITEM}.file"),
    ("{code: 5}", f"8: {ITEM}.code must be text"),
    ("{files: a.star}", f"8: unknown key 'files' in {ITEM}; did you mean 'file'?"),
    ("{file: gone.star}", f"{FILE}/gone.star cannot be read: No such file"),
    ("{file: .}", f"{FILE} cannot be read: Is a directory"),
    ("{file: latin.star}", f"{FILE}/latin.star:2: is not UTF-8 text"),
    ("{file: long.star}", f"{FILE}/long.star is larger than 1048576 bytes"),
    ("{file: nul.star}", f"{FILE}/nul.star:2: holds a NUL character"),
    ("{file: syntax.star}", f"{FILE}/syntax.star:3: got newline, want primary expression"),
    ("{file: name.star}", f"{FILE}/name.star:2: undefined: name"),
    ("{file: run.star}", f"{FILE}/run.star:2: fail: no"),
    ("{file: none.star}", f"{FILE}/none.star has no function transform; write def transform("),
    ("{file: five.star}", f"{FILE}/five.star: transform is not a function but int"),
    ("{file: null.star}", f"{FILE}/null.star redefines null, true or false"),
    ("{file: load.star}", f"{FILE}/load.star:1: load not implemented"),
    ("{file: while.star}", f"{FILE}/while.star:2: this Starlark dialect does not support while"),
    (
        "\n          code: |-\n            x = 1\n            y = (",
        f"9: {ITEM}.code cannot be used: code:2: got ",
    ),
    (
        "\n          namespace: x\n          code: |-\n            x = 1",
        f"10: {ITEM}.code cannot be used: code has no function transform",
    ),
]
FILES = {
    "good.star": GOOD.encode(),
    "latin.star": b"# 1\n# \xe4\n",
    "long.star": b"#" * (1024 * 1024 + 1),
    "nul.star": b"x = 1\ny = '\0'\n",
    "syntax.star": b"def transform(m):\n  return m +\n",
    "name.star": b"def transform(m):\n  return name\n",
    "run.star": b"def transform(m): pass\nfail('no')\n",
    "none.star": b"def transfrom(m): pass\n",
    "five.star": b"transform = 5\n",
    "null.star": GOOD.encode() + b"null = 5\n",
    "load.star": b"load('good.star', 'transform')\n",
    "while.star": b"def transform(m):\n  while True:\n    pass\n",
}


@pytest.mark.parametrize(("item", "expected"), MISTAKES)
def test_a_wrong_step_is_one_problem(
    step_file: Write, folder: Path, item: str, expected: str
) -> None:
    """A script that cannot be used is reported at load: its line, and that of the step."""
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    found = problem(step_file(item))
    assert found.startswith(expected.format(folder=folder)), found
    assert found.isprintable()


def test_a_script_that_a_variable_names_is_not_repeated(step_file: Write, folder: Path) -> None:
    """A value that came from a variable stays out of the error."""
    (folder / "hunter22.star").write_text("x = 1\n")
    file = step_file("{file: '${X}'}")
    for name in ("hunter22", "hunter22.star"):
        assert "hunter22" not in problem(file, {"X": name})


def test_what_is_gone_since_the_load_is_told(folder: Path) -> None:
    """A worker that does not find a script reports a configuration error, without a traceback."""
    config = StepConfig(name="starlark", settings={"file": "never.star"})
    with pytest.raises(ConfigError, match=r"^step starlark: .*/never.star cannot be read: No such"):
        compile_steps([config], folder)


def test_a_reload_gives_a_changed_script_a_new_worker(step_file: Write, folder: Path) -> None:
    """A route is restarted, because its script may differ, and a wrong script stops a reload."""
    script = folder / "turn.star"
    script.write_text(GOOD)
    running = load(step_file("{file: turn.star}"), {})
    wanted = reread(running, {})
    assert [route.name for route in changed_routes(running, wanted)] == ["out"]
    script.write_text("def transform(message):\n  return\n  +\n")
    with pytest.raises(InvalidPipeline, match=r"turn\.star:4: "):
        reread(running, {})


def test_a_file_without_scripts_loads_no_interpreter(
    pipeline_file: Write, valid: str, folder: Path
) -> None:
    """Go's runtime, which survives no fork, is not in a process that needs no script."""
    file = pipeline_file(valid)
    code = (
        "import sys, pathlib; from transporter.pipeline.config import load; "
        f"load(pathlib.Path({str(file)!r}), {{}}); "
        "sys.exit(any(name.startswith('starlark_go') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=folder).returncode == 0


def test_a_step_runs_its_script_once(
    steps: Callable[..., Steps], capsys: pytest.CaptureFixture[str]
) -> None:
    """Code outside of ``transform`` runs once for a step, not for the check and then again."""
    steps({"starlark": {"code": f"print('loaded')\n{GOOD}"}})
    assert capsys.readouterr().err == "starlark code: loaded\n"
