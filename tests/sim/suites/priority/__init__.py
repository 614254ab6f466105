"""Suite `priority`: workers, producers and operators of priority queues under trouble."""
