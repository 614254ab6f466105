"""Subscriptions that are behind, and how far a queue is with and without them."""
