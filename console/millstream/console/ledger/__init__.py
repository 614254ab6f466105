"""`millstream ledger`: looks into ledgers, and mends them."""
