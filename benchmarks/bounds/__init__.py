"""The cost of a flood or a fault, each with a bound: `python -m benchmarks bounds`."""
