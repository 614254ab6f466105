"""From a subscription that has work to its consumer: the decisions, and the calls."""
