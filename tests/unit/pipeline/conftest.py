"""A folder for a pipeline file with adaptors of its own, cleaned up afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ADAPTORS = '''\
from typing import Literal

from pydantic import BaseModel, Field, SecretStr, field_validator
from transporter.adaptor import AdaptorConfig
from transporter.units import Duration, LocalPath, Size


class Tls(BaseModel):
    verify: bool = True


class Source:
    """Reads what a test wants.

    And a second paragraph.
    """

    class Config(AdaptorConfig):
        count: int = Field(default=3, description="How many.")
        password: SecretStr | None = None
        text: str = ""
        wait: Duration = 0.5
        mode: Literal["fast", "safe"] = "safe"
        tls: Tls | None = None
        odd: int = 1
        echo: str = ""

        @field_validator("echo")
        @classmethod
        def repeats_itself(cls, value):
            raise ValueError(f"cannot make sense of {value[1:-1]}, you know")

        @field_validator("odd")
        @classmethod
        def is_odd(cls, value):
            if value == 13:
                raise RuntimeError("a validator with a bug")
            if value % 2 == 0:
                raise ValueError(f"{value} is even")
            return value

    def __init__(self, config): self.config = config
    def open(self, resume): ...
    def poll(self, timeout): ...
    def commit(self, position): ...
    def close(self): ...


class Sink:
    """Writes nowhere."""

    class Config(AdaptorConfig):
        path: LocalPath
        buffer: Size = 1024
        tags: list[str] = []

    def __init__(self, config): self.config = config
    def open(self, context): ...
    def write(self, batch, ack): ...
    def close(self): ...


class NoConfig:
    def open(self, context): ...
    def write(self, batch, ack): ...


number = 5
'''

VALID = """\
readers:
  - name: in
    adaptor: {module}:Source
routes:
  - name: out
    writer: {{adaptor: "{module}:Sink", path: out}}
"""


@pytest.fixture
def pipeline_file(folder: Path) -> Callable[[str], Path]:
    """Write a pipeline file beside a module ``doubles``, and return its path."""
    (folder / "doubles.py").write_text(ADAPTORS)

    def write(text: str) -> Path:
        file = folder / "orders.yaml"
        file.write_text(text)
        return file

    return write


@pytest.fixture
def valid() -> str:
    """Return the text of the smallest valid pipeline."""
    return VALID.format(module="doubles")
