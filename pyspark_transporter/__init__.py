"""Found by Spark, which looks for packages of this name: ``format("transporter")`` just works."""

from transporter.spark.data_source import TransporterSource as DefaultSource

__all__ = ["DefaultSource"]
