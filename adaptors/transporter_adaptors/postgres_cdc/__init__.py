"""The ``postgres-cdc`` reader: copies tables, then follows their changes."""
