"""Fixture for a writer to any receiver of a test."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from transporter_adaptors.http.writer import HttpWriter

from transporter.adaptor import WriterContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONTEXT = WriterContext(log_id="log-1", route="route", epoch=1, deadline=20.0)


@pytest.fixture
def make_writer() -> Iterator[Callable[..., HttpWriter]]:
    """Return a function that opens a writer to a URL, and close all of them at the end."""
    opened: list[HttpWriter] = []

    def make(url: str, deadline: float = 20.0, **settings: Any) -> HttpWriter:
        writer = HttpWriter(HttpWriter.Config(url=url, **settings))
        opened.append(writer)
        writer.open(replace(CONTEXT, deadline=deadline))
        return writer

    yield make
    for writer in opened:
        writer.close()
    assert "http-request" not in {thread.name for thread in threading.enumerate()}
