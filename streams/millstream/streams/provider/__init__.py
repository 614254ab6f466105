"""The parts of a stream provider put together."""
