"""Steps as a pipeline file has them, and a function for them beside that file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from transporter.pipeline.steps.chain import Steps, compile_steps
from transporter.pipeline.steps.step import StepConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def steps(folder: Path) -> Callable[..., Steps]:
    """Compile steps that are given as the items of a pipeline file's list."""

    def compiled(*items: dict[str, dict[str, Any]]) -> Steps:
        pairs = [pair for item in items for pair in item.items()]
        configs = [StepConfig(name=name, settings=settings) for name, settings in pairs]
        return compile_steps(configs, folder)

    return compiled


@pytest.fixture
def python(folder: Path) -> Callable[[str], dict[str, Any]]:
    """Write a module with a function ``turn`` beside the pipeline file, and return the step.

    The first module is ``turning``. Later ones have a number, because modules stay loaded.
    """
    count = 0

    def write(body: str) -> dict[str, Any]:
        nonlocal count
        name = f"turning{count or ''}"
        count += 1
        head = "from dataclasses import replace\nfrom transporter.message import Message\n\n"
        (folder / f"{name}.py").write_text(head + body)
        return {"python": {"function": f"{name}:turn"}}

    return write
