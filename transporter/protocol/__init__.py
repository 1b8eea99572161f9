"""Messages and connections between the engine, the Spark host and the workers."""
