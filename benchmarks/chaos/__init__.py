"""A ledger of three silo processes that are killed and restarted while records are appended."""
