"""Workers from the side of the engine: the Spark host, connections and leases."""
