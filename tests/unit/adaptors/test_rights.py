"""Rights of the files that writers make, under any umask."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError
from transporter_adaptors.file.writer import FileWriter
from transporter_adaptors.lmdb.writer import LmdbWriter

from transporter.adaptor import WriterContext
from transporter.message import Message
from transporter.pipeline.config import load
from transporter.testing import RecordingAck, entries

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONTEXT = WriterContext(log_id="log-1", route="route", epoch=1)


@pytest.fixture(params=[0o002, 0o022, 0o077, 0])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Set the umask for the test, 002 on a host that shares a group."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def deliver(writer: Any) -> None:
    """Write one entry with *writer*."""
    try:
        writer.open(CONTEXT)
        batch = entries([Message("orders", b'{"card": 1}', b"k")])
        ack = RecordingAck(batch)
        writer.write(batch, ack)
        assert ack.complete
    finally:
        writer.close()


def write_file(path: Path, **settings: Any) -> None:
    """Write a line to a file in the folder *path*."""
    deliver(FileWriter(FileWriter.Config(path=path / "out.jsonl", **settings)))


def write_numbered(path: Path, **settings: Any) -> None:
    """Write a line to a numbered file in the folder *path*."""
    write_file(path, roll_bytes=10_000, **settings)


def write_lmdb(path: Path, **settings: Any) -> None:
    """Write an entry to the database in the folder *path*."""
    deliver(LmdbWriter(LmdbWriter.Config(path=path, **settings)))


EVERY = pytest.mark.parametrize("write", [write_file, write_numbered, write_lmdb])


def rights(path: Path) -> int:
    """Return the rights of *path*."""
    return stat.S_IMODE(path.stat().st_mode)


@EVERY
@pytest.mark.parametrize(
    ("mode", "files", "folders"),
    [(None, 0o600, 0o700), ("0640", 0o640, 0o750), ("0660", 0o660, 0o770), ("0644", 0o644, 0o755)],
)
def test_what_is_made_has_the_rights_of_the_setting(
    tmp_path: Path, umask: int, write: Any, mode: str | None, files: int, folders: int
) -> None:
    """By default only the owner may read new files, or replace them in their folder."""
    write(tmp_path / "a" / "sink", **({} if mode is None else {"mode": mode}))
    made = list((tmp_path / "a" / "sink").iterdir())
    assert len(made) == 2
    assert {rights(each) for each in made} == {files}
    assert {rights(tmp_path / "a"), rights(tmp_path / "a" / "sink")} == {folders}


@EVERY
def test_what_is_there_keeps_its_rights(tmp_path: Path, write: Any) -> None:
    """An operator's own chmod outlives a restart, in both directions."""
    folder = tmp_path / "sink"
    write(folder)
    for each in folder.iterdir():
        each.chmod(0o664)
    folder.chmod(0o2775)
    write(folder)
    assert {rights(each) for each in folder.iterdir()} == {0o664}
    assert rights(folder) == 0o2775


def test_what_is_cut_off_is_kept_as_private(tmp_path: Path, umask: int) -> None:
    """The copy of unacknowledged lines is made with the mode of the setting, too."""
    write_file(tmp_path)
    with (tmp_path / "out.jsonl").open("ab") as file:
        file.write(b"half a li")
    write_file(tmp_path)
    assert rights(tmp_path / "out.jsonl.cut-1") == 0o600


@pytest.mark.parametrize("mode", ["0777", "600", 416, 777, "0200", "-rw-------"])
def test_a_mode_that_is_none_is_refused(tmp_path: Path, mode: object) -> None:
    """An unknown mode is refused, and the error names the allowed ones."""
    for config in (FileWriter.Config, LmdbWriter.Config):
        with pytest.raises(ValidationError, match="'0600', '0640'"):
            config(path=tmp_path, mode=mode)


def test_a_mode_without_quotes_is_the_octal_that_it_looks_like(tmp_path: Path) -> None:
    """A mode without quotes is octal, although YAML 1.2 reads ``0640`` as the number 640."""
    for config in (FileWriter.Config, LmdbWriter.Config):
        assert config(path=tmp_path, mode=640).mode == "0640"
    schema = FileWriter.Config.model_json_schema()["properties"]["mode"]
    assert {"0640", 640} <= set(schema["enum"])
    file = tmp_path / "p.yaml"
    file.write_text(
        "readers: [{name: in, adaptor: demo}]\n"
        "routes: [{name: out, writer: {adaptor: lmdb, path: out, mode: 0640}}]\n"
    )
    assert load(file, {}).routes[0].writer.config.mode == "0640"


def test_standard_output_takes_no_mode() -> None:
    """Standard output takes no mode, because another process opened it."""
    with pytest.raises(ValidationError, match="mode has no effect on standard output"):
        FileWriter.Config(path="-", mode="0600")
