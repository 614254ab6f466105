"""Who has a queue in a cluster: one grain owns it, lets polls wait, and does what falls due."""
