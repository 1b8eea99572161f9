"""Leader election: electors decide which candidate may try to lead, not what a leader may do."""
