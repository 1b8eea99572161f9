"""Steps of a route: changes to entries between the log and the writer."""

from transporter.pipeline.steps.chain import Steps, compile_steps

__all__ = ["Steps", "compile_steps"]
