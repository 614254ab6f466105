"""The parts of a silo put together."""
