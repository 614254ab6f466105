"""Topics as the queues of a stream provider."""
