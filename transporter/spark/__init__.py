"""The Spark host and its pumps: the only package that imports pyspark."""
