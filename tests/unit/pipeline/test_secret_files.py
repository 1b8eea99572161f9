"""Secrets that a pipeline file takes from files: reading, refusal and redaction."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from transporter.cli import app
from transporter.errors import EnvironmentFault
from transporter.pipeline.config import load
from transporter.pipeline.log_location import log_directory
from transporter.pipeline.problems import InvalidPipeline
from transporter.pipeline.reload_changes import changed_readers, changed_routes, reread
from transporter.pipeline.secret_files import MOST, UnreadableSecret, read_secret

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.pipeline.config import Pipeline

CANARY = "Canary/with space+1"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Return a secret file."""
    path = tmp_path / "secret"
    path.write_text(f"{CANARY}\n")
    path.chmod(0o600)
    return path


def pipeline(folder: Path, value: str, **top: Any) -> Path:
    """Write a pipeline file whose reader's DSN and whose writer's header hold *value*."""
    document = {
        "readers": [
            {"name": "in", "adaptor": "postgres-outbox", "dsn": f"host=db password='{value}'"}
        ],
        "routes": [
            {
                "name": "out",
                "writer": {
                    "adaptor": "http",
                    "url": "http://127.0.0.1:1/",
                    "headers": {"Authorization": f"Bearer {value}"},
                },
            }
        ],
        **top,
    }
    path = folder / "p.yaml"
    path.write_text(json.dumps(document))
    return path


def dsn(found: Pipeline) -> str:
    """Return the reader's connection string."""
    return str(found.readers[0].config.dsn.get_secret_value())


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"x\n", "x"),
        (b"x\r\n", "x"),
        (b"x", "x"),
        (b"x\n\n", "x\n"),
        (b" x ", " x "),
        ("é\ny\n".encode(), "é\ny"),
    ],
)
def test_one_line_end_is_stripped(tmp_path: Path, content: bytes, text: str) -> None:
    """One line end, as editors write it behind a secret, is stripped, and no other byte is."""
    (tmp_path / "s").write_bytes(content)
    assert read_secret(tmp_path / "s") == text


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (Path.exists, "cannot be read: No such file"),
        (Path.mkdir, "is not a regular file"),
        (os.mkfifo, "is not a regular file"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_bytes(b"\n"), "is empty"),
        (lambda path: path.write_bytes(b"a\0b"), "holds a NUL"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "is not UTF-8"),
        (lambda path: path.write_bytes(b"x" * (MOST + 1)), "is larger than 65536 bytes"),
        (lambda path: (path.touch(), path.chmod(0o602)), "can be written by every user"),
    ],
)
def test_what_is_no_secret_is_refused(
    tmp_path: Path, make: Callable[[Path], object], problem: str
) -> None:
    """The error has the file's name and the problem, at the line where it is written."""
    make(tmp_path / "secret")
    with pytest.raises(UnreadableSecret, match=problem):
        read_secret(tmp_path / "secret")
    with pytest.raises(InvalidPipeline, match=f"p.yaml:1: secret file .*secret {problem}"):
        load(pipeline(tmp_path, "${file:secret}"), {})


def test_links_are_followed(tmp_path: Path, secret: Path) -> None:
    """Links are followed, because Kubernetes mounts each secret as a link to a link."""
    (tmp_path / "link").symlink_to(secret)
    assert read_secret(tmp_path / "link") == CANARY


def test_files_and_variables_stand_beside_each_other(tmp_path: Path, secret: Path) -> None:
    """Relative paths begin at the pipeline file, values bring no structure, and $${ escapes."""
    found = load(pipeline(tmp_path, "${PRE}${file:secret}$${file:secret}"), {"PRE": "p-"})
    assert dsn(found) == f"host=db password='p-{CANARY}${{file:secret}}'"
    assert dsn(load(pipeline(tmp_path, f"${{file:{secret}}}"), {})) == dsn(
        load(pipeline(tmp_path, "${file:secret}"), {})
    )


@pytest.mark.parametrize("name", ["~nobody-here/x", "a" * 5000, "\0", "/"])
def test_a_strange_name_is_an_error_like_any_other(tmp_path: Path, name: str) -> None:
    """The error for a strange name is one line."""
    with pytest.raises(InvalidPipeline, match="secret file"):
        load(pipeline(tmp_path, f"${{file:{name}}}"), {})


@pytest.mark.parametrize("text", ["${file:}", "${file:x"])
def test_what_names_no_file_is_refused(tmp_path: Path, text: str) -> None:
    """A malformed reference is not a variable."""
    with pytest.raises(InvalidPipeline, match="does not begin a variable"):
        load(pipeline(tmp_path, text), {})


def test_a_file_is_a_secret_whatever_the_setting_is_called(tmp_path: Path, secret: Path) -> None:
    """A file is a secret in every encoding, and a variable beside it is not."""
    path = pipeline(tmp_path, "x")
    document = json.loads(path.read_text())
    document["routes"][0]["writer"]["headers"] = {"X-Plain": "${HOST} ${file:secret}"}
    path.write_text(json.dumps(document))
    hidden = load(path, {"HOST": "plainly"}).secrets.hide(
        f"{CANARY} Q2FuYXJ5L3dpdGggc3BhY2UrMQ== Canary%2Fwith%20space%2B1 plainly"
    )
    assert hidden == "*** *** *** plainly"


def test_no_error_repeats_it(
    tmp_path: Path, secret: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A setting that refuses its value does not show it."""
    path = pipeline(tmp_path, "x", commit_interval="${file:secret}")
    assert app.execute(["check", str(path)]) == 2
    assert CANARY not in "".join(capsys.readouterr())


def test_commands_that_need_no_secret_read_none(tmp_path: Path) -> None:
    """The log directory is found without rights to the secrets."""
    path = pipeline(tmp_path, "${file:not-there}")
    assert log_directory(path, {}) == tmp_path / "data" / "p"


def test_it_is_read_again(tmp_path: Path, secret: Path) -> None:
    """A changed file gives new settings, and both values are secrets. Else nothing changes."""
    reader = load(pipeline(tmp_path, "${file:secret}"), {}).readers[0]
    assert reader.renew_secrets() is reader
    assert not reader.is_outdated()
    secret.write_text("Another-one\n")
    assert reader.is_outdated()
    renewed = reader.renew_secrets()
    assert renewed.config.dsn.get_secret_value() == "host=db password='Another-one'"
    assert renewed.secrets.hide(f"{CANARY} Another-one") == "*** ***"
    assert renewed.renew_secrets() is renewed


def test_one_that_is_gone_is_an_error_without_what_it_held(tmp_path: Path, secret: Path) -> None:
    """A missing file is an error, and the old value is not used silently."""
    reader = load(pipeline(tmp_path, "${file:secret}"), {}).readers[0]
    secret.unlink()
    assert not reader.is_outdated()
    with pytest.raises(EnvironmentFault, match=r"secret file .*secret cannot be read"):
        reader.renew_secrets()
    secret.write_text("it's no\\")
    with pytest.raises(
        EnvironmentFault, match="refuses the current contents of the secret file"
    ) as raised:
        reader.renew_secrets()
    assert "it's" not in str(raised.value)


def test_a_replaced_secret_is_no_change_of_the_pipeline(tmp_path: Path, secret: Path) -> None:
    """A reload accepts it, and gives new workers to the routes whose secret it is."""
    spark = {"config": {"spark.hadoop.fs.key": "${file:secret}"}}
    running = load(pipeline(tmp_path, "${file:secret}", spark=spark), {})
    assert changed_routes(running, reread(running, {})) == []
    secret.write_text("Another-one\n")
    wanted = reread(running, {})
    assert [each.name for each in changed_routes(running, wanted)] == ["out"]
    other = tmp_path / "other"
    other.write_text("Another-one\n")
    pipeline(tmp_path, "${file:other}", spark=spark)
    # Another file is a change, even with the same contents: the reader is reopened.
    assert [each.name for each in changed_readers(running, wanted)] == []
    assert [each.name for each in changed_readers(running, reread(running, {}))] == ["in"]


def test_check_warns_of_one_that_all_may_read(
    tmp_path: Path, secret: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warning names the file, unless a folder above is closed to others."""
    path = pipeline(tmp_path, "${file:secret}")
    tmp_path.chmod(0o755)
    assert app.execute(["check", str(path)]) == 0
    assert "every user" not in capsys.readouterr().err
    secret.chmod(0o644)
    assert app.execute(["check", str(path)]) == 0
    assert f"warning: every user of this host may read {secret}" in capsys.readouterr().err
    tmp_path.chmod(0o700)
    assert app.execute(["check", str(path)]) == 0
    assert "every user" not in capsys.readouterr().err
