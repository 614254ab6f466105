"""A ledger of three silo processes that are killed and started again while records are appended."""
