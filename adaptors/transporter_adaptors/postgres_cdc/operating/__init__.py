"""Operation of the ``postgres-cdc`` reader's objects at its source, for ``transporter cdc``."""
