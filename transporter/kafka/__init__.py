"""Kafka client parts that adaptors, queues and electors share."""
