"""Changes of messages as a stream: what carries them from outboxes to a stream provider."""
