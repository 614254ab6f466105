"""Benchmarks beside a limit, peers and other revisions: `python -m benchmarks`."""
