"""The kafka adaptor."""
