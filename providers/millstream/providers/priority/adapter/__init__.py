"""Priority queues as the queues of a stream provider."""
