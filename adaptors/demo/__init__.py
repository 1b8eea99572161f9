"""The demo adaptor."""
