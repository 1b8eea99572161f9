"""Scaffolds of ``transporter init``: a first pipeline file and a first adaptor."""
