"""Any sink that Spark can write to."""
