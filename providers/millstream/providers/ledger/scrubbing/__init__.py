"""Each bookie reads all that it has, and repairs damaged and missing copies from other bookies."""
