"""What of a queue stands still, and saying so."""
