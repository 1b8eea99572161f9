"""The operator console: web pages about logs, served by ``transporter ui``."""
