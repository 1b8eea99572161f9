"""docs/tutorial.md, executed from its first to its last command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from page_tools import followed, psql_path

if TYPE_CHECKING:
    from pathlib import Path

    from services.postgres import Database

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize(
    "real",
    [
        pytest.param(False, id="without Spark"),
        pytest.param(True, id="on Spark", marks=(pytest.mark.exhaustive, pytest.mark.spark)),
    ],
)
def test_the_tutorial(postgres: Database, tmp_path: Path, real: bool) -> None:
    """Each command works as the page shows it. Without Spark the quickstart is left out."""
    variables = {"ORDERS_DSN": postgres.dsn, "PATH": psql_path()}
    with followed("tutorial.md", tmp_path, real=real, **variables) as page:
        if real:
            page.run("A first pipeline")
            page.stop()
        else:
            page.leave_out("A first pipeline")
        page.run("An outbox of your own")
        page.run("Events from your application")
        page.run("Your first incident")
