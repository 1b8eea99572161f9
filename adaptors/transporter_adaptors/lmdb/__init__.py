"""The lmdb adaptor."""
