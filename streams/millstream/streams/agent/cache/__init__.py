"""What was read of a queue and is not done, and the places in it."""
