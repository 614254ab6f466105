"""`millstream pq`: priority queues from the command line."""
