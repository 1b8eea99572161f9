"""Hostile pipeline files end as configuration errors, soon and in little memory."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import hostile_pipelines
import pytest

import transporter
from transporter.errors import ConfigError
from transporter.pipeline.config import Pipeline, load
from transporter.pipeline.yaml_document import MAX_BYTES

ROOT = Path(transporter.__file__).parents[1]
EVERY, SOME, SHARDS = 10_400, 400, 4
"""Files in all with `make soak`, and in an ordinary run."""
SECONDS = 1.0
ATTEMPTS = 5
"""Times that a file is loaded before it counts as slow."""
MEMORY = 256 << 20
SAMPLE = 24
"""Files that the real command gets with `make soak`, spread over all kinds, or else a sixth."""
_PLACE = re.compile(r"(?P<file>[^\n]*p\.yaml):(?P<line>\d+): \S")
# Only an error about the file as a whole has no line.
_WHOLE = re.compile(r"[^\n]*p\.yaml: is larger than")


@pytest.mark.parametrize("files", [SOME, pytest.param(EVERY, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.timeout(600)
def test_any_file_loads_or_is_refused_with_its_line(tmp_path: Path, shard: int, files: int) -> None:
    """Each of thousands loads, or is refused with file and line in a second and 256 MiB."""
    file = tmp_path / "p.yaml"
    loaded = 0
    for seed in range(shard, files, SHARDS):
        file.write_bytes(hostile_pipelines.hostile(seed))
        # Of this thread alone, and again where other processes slowed it down.
        taken = []
        while not taken or (taken[-1] >= SECONDS and len(taken) < ATTEMPTS):
            begun = time.thread_time()
            right = _loads(file, seed)
            taken.append(time.thread_time() - begun)
        assert taken[-1] < SECONDS, f"seed {seed}: {taken}"
        loaded += right
    # Otherwise the files would be rubbish that never reaches the validation.
    assert files / SHARDS / 50 < loaded < files / SHARDS / 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", hostile_pipelines._LARGE, ids=lambda kind: kind.__name__)
def test_large_files_take_little_memory(tmp_path: Path, kind: hostile_pipelines._Kind) -> None:
    """The memory allocated for the largest files stays far below the bound."""
    import random  # noqa: PLC0415 - the seeds of this test alone

    file = tmp_path / "p.yaml"
    tracemalloc.start()
    try:
        for seed in range(12):
            file.write_bytes(kind(random.Random(seed))[: MAX_BYTES + 1])
            with suppress(ConfigError):
                load(file, {})
        assert tracemalloc.get_traced_memory()[1] < MEMORY / 4
    finally:
        tracemalloc.stop()


def _loads(file: Path, seed: int) -> bool:
    """Return whether *file* loads, and check that each line of an error names a place."""
    try:
        assert isinstance(load(file, {}), Pipeline)
    except ConfigError as error:
        for line in str(error).split("\n"):
            assert _PLACE.match(line) or _WHOLE.match(line), (seed, line)
            assert line.isprintable(), (seed, line)
        return False
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}") from error
    return True


def confined() -> None:
    """Limit this process to 256 MiB beyond the mapped libraries."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(331 * at, marks=pytest.mark.exhaustive if at % 6 else ())
        for at in range(SAMPLE)
    ],
)
def test_the_command_refuses_it_too(tmp_path: Path, seed: int) -> None:
    """``check`` in little memory ends with 0 or 2, with file and line, and no traceback."""
    file = tmp_path / "p.yaml"
    large = hostile_pipelines._LARGE
    data = hostile_pipelines.hostile(seed)
    if seed % 2:
        import random  # noqa: PLC0415 - as above

        data = large[seed % len(large)](random.Random(seed))[: MAX_BYTES + 1]
    file.write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-m", "transporter.cli.app", "check", "p.yaml"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        preexec_fn=confined,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 2), done.stderr
    assert b"Traceback" not in done.stderr
    if done.returncode == 2:
        for line in done.stderr.decode().splitlines():
            assert _PLACE.match(line) or _WHOLE.match(line), line
            assert line.isprintable()
