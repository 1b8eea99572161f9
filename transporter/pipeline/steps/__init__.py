"""Steps of a route: changes to entries between the log and the writer."""
