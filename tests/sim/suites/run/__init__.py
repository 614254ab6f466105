"""What every simulated run has: a plan of troubles, programs, notes, stops."""
