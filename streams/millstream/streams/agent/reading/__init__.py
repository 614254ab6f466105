"""Reading one queue: the decisions, and the calls to its receiver."""
