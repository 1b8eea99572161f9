"""What ``transporter init`` writes: a first pipeline file, a first adaptor."""
