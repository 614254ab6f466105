"""One activation and all of a silo: requests, the turn rule, deadlines, the catalog."""
