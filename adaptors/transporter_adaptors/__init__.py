"""The adaptors that ship with transporter, one folder a system."""
