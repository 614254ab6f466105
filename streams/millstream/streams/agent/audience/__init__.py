"""Who hears a stream of one queue, and what of it is held."""
