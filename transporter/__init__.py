"""A durable commit-log pipeline engine on Apache Spark."""

__version__ = "0.1.0"
