"""The quick loop: ``--quick`` leaves out what took long when it ran last.

The durations of every run are kept in pytest's cache, so there is no list to keep up to date. A
test that is new, or has not run in this checkout, is quick until it has shown otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT: Final = 0.3
"""Seconds that a quick test takes at most, with its fixtures."""
_KEY: Final = "transporter/durations"
_DURATIONS = pytest.StashKey[dict[str, float]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--quick", action="store_true", help="leave out what was slow last time")


def pytest_configure(config: pytest.Config) -> None:
    """Read the durations, and let the process that runs the session record new ones."""
    cache = getattr(config, "cache", None)
    config.stash[_DURATIONS] = dict(cache.get(_KEY, {})) if cache is not None else {}
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(config), "durations")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow tests, which pytest counts as deselected."""
    if config.getoption("--quick"):
        known = config.stash[_DURATIONS]
        slow = {item for item in items if known.get(item.nodeid, 0.0) >= LIMIT}
        items[:] = [item for item in items if item not in slow]
        config.hook.pytest_deselected(items=list(slow))


class _Recorder:
    """Records how long each test takes."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._found = config, dict[str, float]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._found[report.nodeid] = self._found.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        if (cache := getattr(self._config, "cache", None)) is not None:
            cache.set(_KEY, dict(self._merged()))

    def _merged(self) -> Iterator[tuple[str, float]]:
        for name, seconds in (self._config.stash[_DURATIONS] | self._found).items():
            yield name, round(seconds, 2)
