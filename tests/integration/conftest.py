"""What tests of ``postgres-cdc`` begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cdc_tools import clean_slots

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.postgres import Database


@pytest.fixture
def shop(postgres: Database) -> Iterator[Database]:
    """Yield a database with a table of items, whose slots are dropped at the end."""
    postgres.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    with clean_slots(postgres):
        yield postgres
