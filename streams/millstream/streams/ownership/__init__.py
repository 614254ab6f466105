"""Which silo reads which queue."""
