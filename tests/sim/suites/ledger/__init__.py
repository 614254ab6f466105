"""Suite `ledger`: streams through the ledger provider."""
