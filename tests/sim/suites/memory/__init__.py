"""Suite `memory`: streams through the memory provider."""
