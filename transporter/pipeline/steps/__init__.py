"""What a route does to its entries between the log and its writer."""

from transporter.pipeline.steps.chain import Steps, compile_steps

__all__ = ["Steps", "compile_steps"]
