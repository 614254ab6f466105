"""Programs and processes: local clusters, silo processes and what starts them."""
