"""The file adaptor."""
