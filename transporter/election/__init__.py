"""Who may try to lead: electors that say it, and none that decides what a leader may do."""
