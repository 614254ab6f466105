"""Noticing which work of a queue stands still, and logging it."""
