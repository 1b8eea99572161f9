"""A durable commit-log pipeline engine on Apache Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transporter.embed import Booted, Exited, MeterRead, Pipeline, Problem, RouteChanged

__version__ = "0.2.0"
__all__ = ["Booted", "Exited", "MeterRead", "Pipeline", "Problem", "RouteChanged"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any name of the module
    """Import the embedding API on first use, so that ``import transporter`` stays cheap."""
    if name not in __all__:
        raise AttributeError(f"module 'transporter' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - most commands do without

    return getattr(import_module("transporter.embed"), name)
