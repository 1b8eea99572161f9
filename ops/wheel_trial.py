# ruff: noqa: INP001 - a script beside its project
"""Trial of a built wheel in a bare environment (the last step of ``make dist``).

It installs the wheel with its extra ``java`` and nothing else, runs ``transporter quickstart``
until rows are delivered, stops it as Ctrl-C does, and checks the types and the tests of a
generated adaptor as its author would. It needs no package but Python, and ends at the first
step that fails.

Usage: ``python ops/wheel_trial.py WHEEL FOLDER``
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path
from typing import Final

_PACKAGES: Final = {"pyspark_transporter", "transporter", "transporter_adaptors"}
_SECONDS: Final = 15.0
"""The time for which the quickstart runs once it has delivered."""
_START: Final = 120.0
"""Seconds for Java and Spark to start, on a busy machine."""
_STOP: Final = 60.0


class TrialFailed(Exception):
    """A step of the trial that does not hold."""


def contents_problems(names: list[str]) -> list[str]:
    """Return the reasons why a wheel with files of these *names* may not be published."""
    tops = {name.partition("/")[0] for name in names}
    packages = {top for top in tops if not top.endswith((".dist-info", ".data"))}
    problems = [f"{each} is at the top of the wheel" for each in sorted(packages - _PACKAGES)]
    problems += [f"{each} is missing" for each in sorted(_PACKAGES - packages)]
    problems += [
        f"{each}/py.typed is missing"
        for each in ("transporter", "transporter_adaptors")
        if f"{each}/py.typed" not in names
    ]
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        problems.append("the LICENSE is missing")
    return problems


def delivered_counts(status: dict[str, object]) -> dict[str, int]:
    """Return the entries delivered by each route, of the JSON of ``transporter status``."""
    result = status.get("result")
    routes = result.get("routes", []) if isinstance(result, dict) else []
    return {each["name"]: each.get("delivered") or 0 for each in routes}


def main() -> None:
    """Try the wheel of the command line in an environment below the folder beside it."""
    wheel, folder = Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()
    try:
        _require_contents(wheel)
        shutil.rmtree(folder, ignore_errors=True)
        binaries = _install(wheel, folder / "venv")
        _try_quickstart(binaries, folder)
        _try_adaptor(binaries, folder)
    except (TrialFailed, subprocess.CalledProcessError) as error:
        sys.exit(f"wheel trial: {error}")
    shutil.rmtree(folder)
    sys.stdout.write(f"{wheel.name} holds in a bare environment\n")


def _require_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        if problems := contents_problems(archive.namelist()):
            raise TrialFailed(f"{wheel.name}: {'; '.join(problems)}")


def _install(wheel: Path, environment: Path) -> Path:
    """Install *wheel* into a new *environment* and return the folder of its programs."""
    _announce("installing the wheel into a bare environment")
    venv.create(environment, with_pip=True)
    _pip(environment / "bin", "install", f"{wheel}[java]")
    _pip(environment / "bin", "check")
    return environment / "bin"


def _pip(binaries: Path, *arguments: str) -> None:
    command = [binaries / "pip", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)


def _try_quickstart(binaries: Path, folder: Path) -> None:
    """Run the quickstart until each route has delivered and some time more, and stop it."""
    _announce(f"transporter quickstart, for {_SECONDS:g} s from its first delivery")
    output = folder / "quickstart.txt"
    with output.open("wb") as file:
        engine = subprocess.Popen(
            [binaries / "transporter", "quickstart", "--dir", "first"],
            cwd=folder,
            env=_bare_environment(folder),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        counts = _wait_for_delivery(engine, binaries, folder)
    finally:
        if engine.poll() is None:
            engine.send_signal(signal.SIGINT)
        code = engine.wait(_STOP)
    if code:
        raise TrialFailed(f"the quickstart ended with {code}; see {output}")
    _announce(", ".join(f"{name}: {count} rows delivered" for name, count in counts.items()))


def _wait_for_delivery(
    engine: subprocess.Popen[bytes], binaries: Path, folder: Path
) -> dict[str, int]:
    deadline = time.monotonic() + _START
    while not (counts := _read_counts(binaries, folder)) or not all(counts.values()):
        if engine.poll() is not None or time.monotonic() > deadline:
            raise TrialFailed(f"the quickstart delivers nothing; see {folder}/quickstart.txt")
        time.sleep(1)
    time.sleep(_SECONDS)
    return _read_counts(binaries, folder)


def _read_counts(binaries: Path, folder: Path) -> dict[str, int]:
    command = [binaries / "transporter", "status", "first/demo.yaml", "--json"]
    done = subprocess.run(
        command, cwd=folder, env=_bare_environment(folder), check=False, stdout=subprocess.PIPE
    )
    return delivered_counts(json.loads(done.stdout)) if done.returncode == 0 else {}


def _try_adaptor(binaries: Path, folder: Path) -> None:
    """Generate an adaptor package, and check its types and its tests as its author would."""
    _announce("mypy and pytest on a generated adaptor")
    made = folder / "my-sink"
    subprocess.run(
        [binaries / "transporter", "init", "adaptor", made.name, "--reader", "--writer"],
        cwd=folder,
        check=True,
    )
    _pip(binaries, "install", "--quiet", "mypy", "pytest")
    modules = sorted(each.name for each in made.glob("my_sink_*.py"))
    subprocess.run([binaries / "mypy", "--strict", *modules], cwd=made, check=True)
    subprocess.run([binaries / "pytest", "-q"], cwd=made, check=True)


def _bare_environment(folder: Path) -> dict[str, str]:
    """Return the variables of a machine without Java, and with no cache of ours."""
    hidden = ("JAVA_HOME", "PYTHONPATH", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return kept | {"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(folder / "cache")}


def _announce(text: str) -> None:
    sys.stdout.write(f"── {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
