"""What a route does to its entries between the log and its writer."""
