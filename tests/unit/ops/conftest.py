"""Scripts of ``ops``, which are not in a package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

OPS = Path(__file__).parents[3] / "ops"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Return a function that imports a script by its name, until the end of the test."""

    def load(name: str) -> ModuleType:
        monkeypatch.syspath_prepend(str(OPS))
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
        return importlib.import_module(name)

    return load
