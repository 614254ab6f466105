"""Which entries of a running bookie may be damaged, and finding out by reading them."""
