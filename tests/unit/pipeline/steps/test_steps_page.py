"""The examples of docs/steps.md do what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from step_tools import batch_of, rows_of

from transporter.message import Message
from transporter.pipeline.document import parse
from transporter.pipeline.steps.table import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.pipeline.steps import Steps

PAGE = Path(__file__).parents[4] / "docs" / "steps.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCES = [(kind, text.strip("\n")) for kind, text in FENCE.findall(PAGE.read_text())]
EXAMPLES = [
    (step, before, after)
    for (kind, step), (_, before), (_, after) in zip(FENCES, FENCES[1:], FENCES[2:], strict=False)
    if kind == "yaml" and not step.startswith("routes:")
]


@pytest.fixture
def enrich(folder: Path) -> None:
    """Write the module that the page shows."""
    (module,) = (text for kind, text in FENCES if kind == "python")
    (folder / "enrich.py").write_text(module)


def item(text: str) -> dict[str, Any]:
    """Return a step as the pipeline file's own parser reads it."""
    root: dict[str, Any] = parse(text, "steps.md", {}).root
    return root


@pytest.mark.usefixtures("enrich")
@pytest.mark.parametrize(("step", "before", "after"), EXAMPLES)
def test_an_example_is_true(
    steps: Callable[..., Steps], step: str, before: str, after: str
) -> None:
    """Each step of the page turns the document above into the one below, byte for byte."""
    batch = batch_of(Message("orders.fr", before.encode()))
    (entry,) = rows_of(steps(item(step)).apply(batch))
    assert entry.message.data == after.encode()


@pytest.mark.usefixtures("enrich")
def test_the_page_knows_every_step(steps: Callable[..., Steps]) -> None:
    """Every step has an example, and the whole route at the top of the page can be made."""
    assert {name for step, _, _ in EXAMPLES for name in item(step)} == set(KINDS)
    (route,) = item(FENCES[0][1])["routes"]
    assert {name for each in route["steps"] for name in each} == set(KINDS)
    messages = Message("orders.fr", b'{"total":1}'), Message("orders.fr", b'{"test":true}')
    (entry,) = rows_of(steps(*route["steps"]).apply(batch_of(*messages)))
    assert entry.message.data == b'{"amount": 1, "country": "fr"}'
