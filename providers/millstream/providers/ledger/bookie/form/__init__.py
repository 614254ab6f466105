"""What a bookie's files look like, and what they say together: bytes in, values out. No I/O but
reading of an open file, no clock, no chance."""
