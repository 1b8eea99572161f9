"""The postgres adaptor."""
