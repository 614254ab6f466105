"""Spark beside what it is compared with: rows written, rows read, micro-batches, the index."""
