"""Routes: slices, outcomes, redelivery and parking."""
