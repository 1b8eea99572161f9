"""Fixtures for every test: real services, and the guarantees a test may rely on."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from services import spark_classes

from transporter.message import Message, messages_to_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

pytest_plugins = ["parts", "quick", "services.postgres", "services.kafka"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let ``make crash`` request every case where ``make test`` takes a seeded sample."""
    parser.addoption("--exhaustive", action="store_true", help="every case, not a seeded sample")
    parser.addoption("--shots", metavar="FOLDER", help="write pictures of the console's pages here")


def pytest_configure() -> None:
    """Let JVMs start from an archive, and Ctrl-C reach children of a background job.

    No test measures time, so no example of a property has a deadline.
    """
    settings.register_profile("without deadline", settings(deadline=None))
    settings.load_profile("without deadline")
    os.environ |= spark_classes.options()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave all of ``tests/soak`` to ``make soak``."""
    if item.nodeid.startswith("tests/soak/"):
        item.add_marker("exhaustive")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the long tests first, so that all workers finish together.

    Cases with the ``exhaustive`` marker are left to ``make soak``, unless they are named.
    """
    items.sort(key=lambda item: item.nodeid.startswith("tests/unit/"))
    if not config.getoption("--exhaustive"):
        named = set(config.args)
        left = [
            item
            for item in items
            if item.get_closest_marker("exhaustive")
            and not named & {item.nodeid, item.nodeid.partition("[")[0]}
        ]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]


@pytest.fixture(scope="session")
def exhaustive(request: pytest.FixtureRequest) -> bool:
    """Return true if every case is wanted."""
    return bool(request.config.getoption("--exhaustive"))


@pytest.fixture
def batch() -> Callable[..., pa.RecordBatch]:
    """Return a maker of message batches: ``batch(3)`` has the keys k0, k1, k2."""

    def make(count: int, namespace: str = "orders.placed", size: int = 10) -> pa.RecordBatch:
        return messages_to_batch(
            [
                Message(namespace, b'{"n":%d,"x":"%s"}' % (number, b"x" * size), b"k%d" % number)
                for number in range(count)
            ]
        )

    return make


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder whose modules can be adaptors, then unload them and restore the path."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
