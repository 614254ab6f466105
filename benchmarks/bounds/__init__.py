"""What a flood or a fault may cost, each with a bound: `python -m benchmarks bounds`."""
