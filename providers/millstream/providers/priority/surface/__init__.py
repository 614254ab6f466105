"""What programs use of priority queues: handles of queues, and leases."""
