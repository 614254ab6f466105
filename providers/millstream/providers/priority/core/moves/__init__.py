"""What operations do with messages: in, out to a worker, back or to an end."""
