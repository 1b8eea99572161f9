"""The http adaptor."""
