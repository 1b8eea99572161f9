"""The only package that imports pyspark: the Spark host and its pumps."""
