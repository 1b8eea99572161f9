"""The pipeline and the events of docs/debezium.md are as the step makes them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from step_tools import batch_of, rows_of

from transporter.message import Message
from transporter.pipeline.config import load
from transporter.pipeline.steps.chain import compile_steps

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).parents[4] / "docs" / "debezium.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def message(line: str) -> Message:
    """Return the message of a line of the page, with the bytes of its document."""
    fields = json.loads(line)
    # The document is everything behind its name, so no number is read and written again.
    data = line.partition('"data": ')[2][:-1].encode() or None
    key = fields.get("key")
    return Message(
        fields["namespace"],
        data,
        None if key is None else key.encode(),
        fields["op"],
        fields.get("phase", "sync"),
        fields["timestamp"],
        fields["source_id"],
        "application/json" if data else None,
        tuple((name, text.encode()) for name, text in fields.get("headers", {}).items()),
    )


def test_the_page_shows_what_the_step_makes(
    pipeline_file: Callable[[str], Path], folder: Path
) -> None:
    """The route of the page turns the entries above into the messages below, byte for byte."""
    (kind, pipeline), (_, before), (_, after) = FENCE.findall(PAGE.read_text())
    assert kind == "yaml"
    (route,) = load(pipeline_file(pipeline), {"SHOP_DSN": "dbname=sales"}).routes
    entries = batch_of(*map(message, before.splitlines()))
    made = rows_of(compile_steps(route.steps, folder).apply(entries))
    assert [entry.message for entry in made] == [*map(message, after.splitlines())]
    assert [entry.offset for entry in made] == [100, 101, 102, 102, 103]
