"""Staged writes: what a writer outside sends is seen as a whole batch, or not at all."""
