"""Who is here and who has what: the table, members, probes, ring, directory, router."""
