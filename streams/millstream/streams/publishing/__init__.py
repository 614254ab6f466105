"""From a publish to the queue: how large messages are, what waits, and what an answer means."""
