"""How far a queue is done, as its record should say, and what former owners told of it."""
