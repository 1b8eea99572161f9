"""The kafka-queue adaptor."""
