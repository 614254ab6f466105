"""Bookies of a cluster: who runs which, and calls to them wherever they are."""
