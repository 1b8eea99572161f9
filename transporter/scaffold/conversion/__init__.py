"""Conversion of other programs' configuration into a pipeline file, for ``transporter init``."""
