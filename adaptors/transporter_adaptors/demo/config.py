"""Settings of the demo reader."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from transporter.adaptor import AdaptorConfig


class DemoReaderConfig(AdaptorConfig):
    """The amount and the rate of demo messages."""

    rate: Annotated[float, Field(gt=0, le=1_000_000)] = 20.0
    """Messages a second."""

    count: Annotated[int, Field(ge=0)] | None = None
    """Messages in all, over every run. Without it there is no end."""

    seed: int = 0
    """The same seed makes the same messages."""
