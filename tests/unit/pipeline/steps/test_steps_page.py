"""The examples of docs/steps.md have the documented results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from step_tools import batch_of, rows_of

from transporter.message import Message
from transporter.pipeline.steps.registry import KINDS
from transporter.pipeline.steps.sql import SQL
from transporter.pipeline.yaml_document import parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.pipeline.steps.chain import Steps

PAGE = Path(__file__).parents[4] / "docs" / "steps.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MESSAGE = ('{"data": ', '{"op": ', '{"namespace": ')
FENCES = [(kind, text.strip("\n")) for kind, text in FENCE.findall(PAGE.read_text())]
EXAMPLES = [
    (step, before, after)
    for (kind, step), (_, before), (_, after) in zip(FENCES, FENCES[1:], FENCES[2:], strict=False)
    if kind == "yaml" and not step.startswith(("routes:", "sql:"))
]
"""Examples of ``sql`` run on Spark: tests/integration/test_frames_page.py."""


@pytest.fixture
def enrich(folder: Path) -> None:
    """Write the module and the script that the page shows."""
    parts = (text for kind, text in FENCES if kind == "python")
    (folder / "enrich.py").write_text("\n\n\n".join(parts))
    (script,) = (text for kind, text in FENCES if kind == "starlark")
    (folder / "enrich.star").write_text(script)


def item(text: str) -> dict[str, Any]:
    """Return a step as the pipeline file's own parser reads it."""
    root: dict[str, Any] = parse(text, "steps.md", {}).root
    return root


def messages(text: str) -> list[Message]:
    """Return the messages of an example: one document, or a message on each line."""
    if not text.startswith(MESSAGE):
        return [Message("orders.fr", text.encode())]
    return [_message(line) for line in text.splitlines()]


def _message(line: str) -> Message:
    fields = json.loads(line)
    # The document is everything behind its name, so no number is read and written again.
    data = line.partition('"data": ')[2][:-1].encode() or None
    key = fields.get("key")
    return Message(
        fields.get("namespace", "orders.fr"),
        data,
        None if key is None else key.encode(),
        op=fields.get("op", "insert"),
        source_id=fields.get("source_id"),
    )


@pytest.mark.usefixtures("enrich")
@pytest.mark.parametrize(("step", "before", "after"), EXAMPLES)
def test_an_example_is_true(
    steps: Callable[..., Steps], step: str, before: str, after: str
) -> None:
    """Each step of the page turns the input above into the output below, byte for byte."""
    rows = rows_of(steps(item(step)).apply(batch_of(*messages(before))))
    assert [entry.message for entry in rows] == messages(after)


@pytest.mark.usefixtures("enrich")
def test_the_page_knows_every_step(steps: Callable[..., Steps]) -> None:
    """Every step has an example, and the whole route at the top of the page can be made."""
    assert {name for step, _, _ in EXAMPLES for name in item(step)} == set(KINDS) - {SQL}
    (route,) = item(FENCES[0][1])["routes"]
    entries = Message("orders.fr", b'{"total":1}'), Message("orders.fr", b'{"test":true}')
    (entry,) = rows_of(steps(*route["steps"]).apply(batch_of(*entries)))
    assert entry.message.data == b'{"amount": 1, "country": "fr"}'
