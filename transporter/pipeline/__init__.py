"""Pipeline files: from YAML to checked configuration."""
