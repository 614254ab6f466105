"""Benchmarks beside a limit and a peer, in one run: `python -m benchmarks calls|activation`."""
