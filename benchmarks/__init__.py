"""Benchmarks with a limit, peers and other revisions for comparison: `python -m benchmarks`."""
