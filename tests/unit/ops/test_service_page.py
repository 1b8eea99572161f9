"""The service of docs/hardening.md: its pipeline, and its script for operators.

``test_deploy_files.py`` verifies its unit.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from root_tools import need_root

from transporter.pipeline.config import load, load_log
from transporter.pipeline.log_location import log_directory

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "hardening.md").read_text(encoding="utf-8")
FENCES = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
HOME = Path("/var/lib/transporter")


def fence(kind: str, word: str) -> str:
    """Return the block of *kind* that holds *word*."""
    (found,) = [text for each, text in FENCES if each == kind and word in text]
    return found


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """Return the page's pipeline file."""
    file = tmp_path / "orders.yaml"
    file.write_text(fence("yaml", "name: orders"))
    return file


def test_everything_of_the_pipeline_is_where_the_service_may_write(pipeline: Path) -> None:
    """The log and the sink are in the folder that the unit opens, and the rest is read only."""
    found = load(pipeline, {"ORDERS_DSN": "dbname=x"})
    assert found.log.dir.parent == HOME
    assert found.routes[0].writer.config.path.parent == HOME
    unit = (ROOT / "deploy" / "transporter@.service").read_text()
    assert "\nStateDirectory=transporter\n" in unit
    assert "\nProtectSystem=strict\n" in unit


def test_the_log_is_found_without_the_variables(pipeline: Path) -> None:
    """Commands for the log need nothing of the file that only root can read."""
    assert log_directory(pipeline, {}) == HOME / "orders" == load_log(pipeline, {}).dir


def test_the_script_gives_a_command_user_and_variables(tmp_path: Path) -> None:
    """A command has the variables of a file that only root can read, and is not root."""
    need_root("the script is root's", "runuser")
    variables = tmp_path / "orders.env"
    variables.write_text(fence("", "ORDERS_DSN="))
    variables.chmod(0o600)
    text = fence("sh", "#!/bin/sh")
    for name, here in {
        "/etc/transporter/orders.env": variables,
        "/var/lib/transporter": tmp_path,
        "-u transporter": "-u nobody",
        "/opt/transporter/bin/transporter": "/bin/sh",
    }.items():
        assert name in text
        text = text.replace(name, str(here))
    script = tmp_path / "orders"
    script.write_text(text)
    script.chmod(0o700)
    command = 'id -un; echo "$ORDERS_DSN"; pwd -L; echo "$1"'
    done = subprocess.run(
        [script, "-c", command, "sh", "an argument"],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    dsn = "host=db.internal dbname=orders user=outbox password=secret"
    assert done.stdout.splitlines() == ["nobody", dsn, str(tmp_path), "an argument"]
