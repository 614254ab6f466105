"""Spark and its alternatives: rows written, rows read, micro-batches, the index."""
