"""Where priority queues are kept: the contract of a store, and the stores."""
