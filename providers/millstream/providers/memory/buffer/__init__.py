"""The buffer queue in memory, usable without a cluster."""
