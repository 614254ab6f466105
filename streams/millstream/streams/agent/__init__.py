"""One queue: reader, cache, cursors, deliveries."""
