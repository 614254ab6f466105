"""A directory that is looked at without its bookie: what is in it, and whether it is whole."""
