"""Copies of entries that are missing are made again, and bookies are emptied, while all runs on."""
